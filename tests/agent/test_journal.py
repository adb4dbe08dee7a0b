"""Which lines are suspects after a death (design §8 rule 5)."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from weir_agent import journal as journal_module
from weir_agent.chunks.spool import DiskFullError
from weir_agent.journal import CrashJournal
from weir_agent.main import record_fault


def test_a_death_names_the_lines_in_the_engine_and_is_kept_until_accepted(tmp_path: Path) -> None:
    journal = CrashJournal(tmp_path)
    for line in (1, 2, 3):
        journal.enter("chunk", 1, line, solo=False)
    journal.leave("chunk", 1, 2)
    death = journal.record_death("crash")
    journal.close()
    later = CrashJournal(tmp_path)
    assert later.deaths() == (death,)
    assert sorted(entry.line for entry in death.resident) == [1, 3]
    assert not death.solo
    assert later.recover() == {}
    later.accepted(death.death_id)
    assert later.deaths() == ()
    later.close()


def test_a_journal_that_somebody_removed_is_written_anew(tmp_path: Path) -> None:
    """Else the lines would be in a file without a name, and nobody's when the process dies."""
    folder = tmp_path / "agent"
    journal = CrashJournal(folder)
    journal.enter("chunk", 1, 1, solo=False)
    shutil.rmtree(folder)
    journal.enter("chunk", 1, 2, solo=False)
    journal.close()
    later = CrashJournal(folder)
    assert later.recover() == {("chunk", 1, 1): False, ("chunk", 1, 2): False}
    shutil.rmtree(folder)
    death = later.record_death("crash", {("chunk", 1, 1): True})
    assert later.deaths() == (death,)
    later.close()


@pytest.mark.parametrize(("lines", "solo"), [([(1, True)], True), ([(1, True), (2, True)], False)])
def test_solo_means_the_only_line_of_a_solo_chunk(
    tmp_path: Path, lines: list[tuple[int, bool]], solo: bool
) -> None:
    journal = CrashJournal(tmp_path)
    for line, alone in lines:
        journal.enter("chunk", 1, line, solo=alone)
    assert journal.record_death("hang").solo is solo
    journal.close()


def test_the_parent_finds_the_lines_of_a_child_that_faulted(tmp_path: Path) -> None:
    child = CrashJournal(tmp_path)
    child.enter("chunk", 4, 8, solo=True)
    child.enter("chunk", 4, 9, solo=False)
    child.leave("chunk", 4, 9)
    child.close()
    record_fault(tmp_path)
    parent = CrashJournal(tmp_path)
    (death,) = parent.deaths()
    assert death.solo
    assert [(e.chunk_id, e.attempt, e.line) for e in death.resident] == [("chunk", 4, 8)]
    parent.close()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A volume without room for a record; undo it for the disk to be back."""

    def fsync(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("weir_agent.journal.os.fsync", fsync)
    return monkeypatch


def test_a_death_on_a_full_volume_is_kept_by_the_journals_own_name(
    tmp_path: Path, full: pytest.MonkeyPatch
) -> None:
    journal = CrashJournal(tmp_path)
    journal.enter("chunk", 1, 1, solo=True)
    death = journal.record_death("hang")
    journal.leave("chunk", 1, 1)  # its task ends after the engine
    journal.close()
    for _ in range(2):  # also after a start that could not tell it
        later = CrashJournal(tmp_path)
        later.clear()
        assert later.deaths() == (death,)
        later.close()
    full.undo()
    last = CrashJournal(tmp_path)
    last.accepted(death.death_id)
    assert last.deaths() == ()
    assert (death.kind, death.solo, death.resident[0].line) == ("hang", True, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deaths", "resident.ndjson"]
    assert list((tmp_path / "deaths").iterdir()) == []
    last.close()


@pytest.mark.usefixtures("full")
def test_the_parent_finds_them_on_a_full_volume_too(tmp_path: Path) -> None:
    child = CrashJournal(tmp_path)
    child.enter("chunk", 4, 8, solo=True)
    child.close()
    record_fault(tmp_path)
    parent = CrashJournal(tmp_path)
    (death,) = parent.deaths()
    assert [(e.chunk_id, e.attempt, e.line) for e in death.resident] == [("chunk", 4, 8)]
    parent.close()


def test_a_fault_with_an_empty_engine_suspects_nobody(tmp_path: Path) -> None:
    record_fault(tmp_path)
    journal = CrashJournal(tmp_path)
    assert journal.deaths() == ()
    journal.close()


def test_a_torn_record_is_skipped(tmp_path: Path) -> None:
    journal = CrashJournal(tmp_path)
    journal.enter("chunk", 1, 1, solo=False)
    with (tmp_path / "resident.ndjson").open("ab") as file:
        file.write(b'["+", "chu')
    assert journal.recover() == {("chunk", 1, 1): False}
    journal.close()


@pytest.mark.parametrize(
    "damaged",
    [b"7", b"null", b'["+", ["chunk"], 1, 2]', b"[" * 100_000],
    ids=lambda record: record[:9],
)
def test_a_damaged_record_ends_neither_the_parent_nor_the_sync(
    tmp_path: Path, damaged: bytes
) -> None:
    """Each sync tells of the deaths: one that cannot would bring no work, and no policy."""
    journal = CrashJournal(tmp_path)
    journal.enter("chunk", 1, 1, solo=False)
    for name in ("resident", "resident-crash-1", "resident-of-another-kind-2", "resident-old"):
        with (tmp_path / f"{name}.ndjson").open("ab") as file:
            file.write(damaged + b"\n")
    assert journal.recover() == {("chunk", 1, 1): False}
    (death,) = journal.deaths()
    assert (death.death_id, death.resident) == ("1", ())
    journal.close()


def test_half_a_record_that_a_full_disk_took_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = CrashJournal(tmp_path)
    journal.enter("chunk", 1, 1, solo=False)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr("weir_agent.journal.os.write", lambda fd, content: write(fd, content[:7]))
        with pytest.raises(DiskFullError, match="no room for a whole record"):
            journal.enter("chunk", 1, 2, solo=False)
    journal.enter("chunk", 1, 3, solo=False)
    assert journal.recover() == {("chunk", 1, 1): False, ("chunk", 1, 3): False}
    journal.close()


def test_a_long_journal_is_compacted_and_keeps_who_is_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 500)
    journal = CrashJournal(tmp_path)
    journal.enter("chunk", 1, 0, solo=False)
    for line in range(1, 200):
        journal.enter("chunk", 1, line, solo=False)
        journal.leave("chunk", 1, line)
    assert journal.recover() == {("chunk", 1, 0): False}
    assert (tmp_path / "resident.ndjson").stat().st_size < 1_000
    journal.close()


def test_a_compaction_that_fails_forgets_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 500)
    journal = CrashJournal(tmp_path)
    journal.enter("chunk", 1, 0, solo=False)
    (tmp_path / "resident.part").mkdir()
    for line in range(1, 50):
        journal.enter("chunk", 1, line, solo=False)
        journal.leave("chunk", 1, line)
    assert journal.recover() == {("chunk", 1, 0): False}
    (tmp_path / "resident.part").rmdir()
    journal.enter("chunk", 1, 50, solo=False)
    journal.leave("chunk", 1, 50)
    assert (tmp_path / "resident.ndjson").stat().st_size < 500
    journal.enter("chunk", 1, 51, solo=True)
    assert journal.recover() == {("chunk", 1, 0): False, ("chunk", 1, 51): True}
    journal.close()
