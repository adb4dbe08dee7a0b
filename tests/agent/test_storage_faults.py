"""A volume that fails under the agent: state ``disk_full``, and no line or chunk is stranded."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from tests.agent.conftest import StartAgent
from tests.support.fake_control_plane import FakeControlPlane, completion_lines
from tests.support.fake_engine import FakeEngine
from weir_agent.agent import EngineDiedError
from weir_agent.chunks import spool
from weir_agent.main import record_fault


class Volume:
    """Makes calls of a module fail with ``error`` while it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: int | None = None
        self._monkeypatch = monkeypatch

    def fails(self, name: str) -> None:
        """The function ``name`` of ``os`` fails with the volume."""
        real: Callable[..., object] = getattr(os, name)

        def call(*arguments: object, **options: object) -> object:
            if self.error is not None:
                raise OSError(self.error, os.strerror(self.error))
            return real(*arguments, **options)

        self._monkeypatch.setattr(os, name, call)


@pytest.fixture
def volume(monkeypatch: pytest.MonkeyPatch) -> Volume:
    monkeypatch.setattr("weir_agent.chunks.disk.NO_ROOM_S", 0.5)
    return Volume(monkeypatch)


@pytest.mark.parametrize("error", [errno.EROFS, errno.EIO, errno.ESTALE])
async def test_a_volume_that_fails_with_the_last_line_keeps_no_chunk(
    start_agent: StartAgent, control_plane: FakeControlPlane, volume: Volume, error: int
) -> None:
    """Design §8 rule 3: what is stored is delivered, the rest runs again."""
    control_plane.add_chunk(completion_lines(4))
    volume.fails("pwrite")
    volume.fails("ftruncate")
    engine = FakeEngine(held=True)
    engine.holds = lambda line: line.line == 4
    async with start_agent(engine) as running:
        await running.until(lambda: engine.resident == {4} and len(engine.executed) == 4)
        control_plane.lease_work = False
        volume.error = error
        engine.hold.set()
        await running.until(lambda: any(s["state"] == "disk_full" for s in control_plane.syncs))
        await running.until(lambda: control_plane.chunks["chunk-0"].state == "closed")
        await running.until(lambda: control_plane.syncs[-1]["chunks"] == [])
        assert sorted(control_plane.results) == [1, 2, 3]
        volume.error = None
        control_plane.lease_work = True
        await running.until(lambda: control_plane.done)
    assert sorted(control_plane.results) == [1, 2, 3, 4]
    assert all(len(records) == 1 for records in control_plane.results.values())


async def test_a_volume_that_fails_with_the_only_line_gives_its_chunk_back(
    start_agent: StartAgent, control_plane: FakeControlPlane, volume: Volume
) -> None:
    control_plane.add_chunk(completion_lines(1))
    volume.fails("pwrite")
    volume.fails("ftruncate")
    engine = FakeEngine(held=True)
    async with start_agent(engine) as running:
        await running.until(lambda: engine.resident == {1})
        volume.error = errno.EROFS
        engine.hold.set()
        await running.until(lambda: any(s["returned"] for s in control_plane.syncs))
        assert any(s["state"] == "disk_full" for s in control_plane.syncs)
        volume.error = None
        await running.until(lambda: control_plane.done)
    assert {line: len(records) for line, records in control_plane.results.items()} == {1: 1}


async def test_a_journal_that_cannot_be_cut_costs_no_result(
    start_agent: StartAgent, control_plane: FakeControlPlane, volume: Volume
) -> None:
    control_plane.add_chunk(completion_lines(3))
    engine = FakeEngine(held=True)
    async with start_agent(engine) as running:
        await running.until(lambda: engine.resident == {1, 2, 3})
        volume.fails("ftruncate")
        volume.error = errno.EIO
        engine.hold.set()
        await running.until(lambda: control_plane.done)
        volume.error = None
    assert sorted(control_plane.results) == [1, 2, 3]
    assert len(engine.executed) == 3  # no result was computed twice


async def test_a_volume_that_takes_no_chunk_is_told_as_full(
    start_agent: StartAgent,
    control_plane: FakeControlPlane,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unlike a chunk that is too large: nothing else would fit either."""
    real = os.open

    def read_only(path: Path, *arguments: object, **options: object) -> int:
        if str(path).endswith("results.ndjson"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, *arguments, **options)  # type: ignore[arg-type]

    control_plane.add_chunk(completion_lines(4))
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(os, "open", read_only)
        async with start_agent() as running:
            await running.until(lambda: any(s["returned"] for s in control_plane.syncs))
            returning = next(s for s in control_plane.syncs if s["returned"])
            assert returning["state"] == "disk_full"
            assert running.engine.executed == []
    assert any(log["event"] == "disk.full" and "Read-only" in log["reason"] for log in logs)
    async with start_agent() as running:
        await running.until(lambda: control_plane.done)
    assert sorted(control_plane.results) == [1, 2, 3, 4]


async def test_a_data_folder_that_somebody_removed_is_made_again(
    start_agent: StartAgent, control_plane: FakeControlPlane, tmp_path: Path
) -> None:
    """The agent said `disk_full` until it was restarted."""
    control_plane.add_chunk(completion_lines(2))
    engine = FakeEngine(held=True)
    async with start_agent(engine) as running:
        await running.until(lambda: engine.resident == {1, 2})
        shutil.rmtree(tmp_path / "agent")
        control_plane.add_chunk(
            [{**line, "line": line["line"] + 2} for line in completion_lines(2)]
        )
        engine.hold.set()
        await running.until(lambda: control_plane.done)
    assert sorted(control_plane.results) == [1, 2, 3, 4]
    assert all(len(records) == 1 for records in control_plane.results.values())


async def test_an_engine_death_on_a_full_volume_is_reported_by_the_next_process(
    start_agent: StartAgent, control_plane: FakeControlPlane, volume: Volume
) -> None:
    """Design §8 rule 5: a line that kills engines does not become an ordinary one again."""
    control_plane.add_chunk(completion_lines(3), solo=True)
    engine = FakeEngine(held=True)
    volume.fails("fsync")
    async with start_agent(engine) as running:
        await running.until(lambda: engine.resident == {1})
        control_plane.down = True
        volume.error = errno.ENOSPC
        engine.dead = True
        engine.hold.set()
        with pytest.raises(EngineDiedError, match="crash"):
            await running.task
    assert engine.killed
    assert control_plane.deaths == {}
    volume.error = None
    control_plane.down = False
    async with start_agent() as running:
        await running.until(lambda: control_plane.done and bool(control_plane.deaths))
        await running.until(lambda: not running.agent.stores.journal.deaths())
    (death,) = control_plane.deaths.values()
    assert (death["kind"], death["solo"]) == ("crash", True)
    assert [entry["line"] for entry in death["resident"]] == [1]


async def test_an_agent_that_starts_on_a_volume_of_reads_only_serves_online_requests(
    start_agent: StartAgent, control_plane: FakeControlPlane, volume: Volume
) -> None:
    """Design §8 rule 3. It died at each start: one engine's death took online traffic away."""
    control_plane.add_chunk(completion_lines(4))
    control_plane.lease_work = False
    async with start_agent() as running:  # makes its folders
        await running.until(lambda: running.agent._serving)
    volume.fails("open")
    volume.error = errno.EROFS
    engine = FakeEngine()
    async with start_agent(engine) as running:
        await running.until(lambda: running.agent._serving)
        async with httpx.AsyncClient(base_url=running.url) as client:
            answer = await client.post("/v1/completions", json={"prompt": "x", "stream": True})
            assert answer.status_code == 200
        assert "[DONE]" in answer.text
        control_plane.lease_work = True
        await running.until(lambda: any(s["state"] == "disk_full" for s in control_plane.syncs))
        assert engine.executed == []
        volume.error = None
        await running.until(lambda: control_plane.done)
        assert running.agent.stores.journal.deaths() == ()
    assert sorted(control_plane.results) == [1, 2, 3, 4]


async def test_a_death_that_cannot_be_recorded_is_recorded_before_the_next_start(
    start_agent: StartAgent, control_plane: FakeControlPlane, volume: Volume, tmp_path: Path
) -> None:
    """Design §8 rule 5: else a line that kills engines would be an ordinary one again."""
    control_plane.add_chunk(completion_lines(1), solo=True)
    engine = FakeEngine(held=True)
    volume.fails("fsync")
    volume.fails("replace")
    async with start_agent(engine, hang_after_s=3.0) as running:
        await running.until(lambda: engine.resident == {1})
        volume.error = errno.EROFS
        engine.silent = True
        with pytest.raises(EngineDiedError, match="hang") as died:
            await running.task
    assert engine.killed
    assert not died.value.recorded
    volume.error = None
    record_fault(tmp_path / "agent")  # what the parent does with that status
    async with start_agent() as running:
        await running.until(lambda: control_plane.done and bool(control_plane.deaths))
    (death,) = control_plane.deaths.values()
    assert death["solo"]
    assert [entry["line"] for entry in death["resident"]] == [1]


async def test_a_volume_too_small_for_any_chunk_is_told_as_full(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Not full to the last byte: without work, and with a state that says why."""
    control_plane.add_chunk(completion_lines(4))
    async with start_agent() as running:
        spool = running.agent.stores.spool
        real, spool._volume = spool._volume, lambda _: (1 << 40, (1 << 40) - (10 << 20), 10 << 20)
        await running.until(
            lambda: bool(control_plane.syncs) and control_plane.syncs[-1]["state"] == "disk_full"
        )
        assert running.engine.executed == []
        spool._volume = real
        await running.until(lambda: control_plane.done)
        await running.until(lambda: control_plane.syncs[-1]["state"] == "serving")


async def test_results_of_an_earlier_process_do_not_make_the_volume_a_full_one(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Design §8 rule 12: an agent that says `disk_full` adopts nothing."""
    control_plane.add_chunk(completion_lines(4))
    async with start_agent() as running:
        spool = running.agent.stores.spool
        spool._volume = lambda _: (1 << 40, (1 << 40) - (10 << 20), 10 << 20)
        await running.until(lambda: bool(control_plane.syncs))
        assert control_plane.syncs[0]["state"] == "serving"


@pytest.mark.parametrize("error", [errno.ESTALE, errno.ENOTCONN])
async def test_a_volume_that_does_not_say_what_it_has_is_told_as_full(
    start_agent: StartAgent, control_plane: FakeControlPlane, error: int
) -> None:
    """As a mount whose server is gone: the control plane goes on hearing of what is held."""
    control_plane.add_chunk(completion_lines(2))
    engine = FakeEngine(held=True)

    def gone(_folder: Path) -> tuple[int, int, int]:
        raise OSError(error, os.strerror(error))

    with capture_logs() as logs:
        async with start_agent(engine) as running:
            await running.until(lambda: engine.resident == {1, 2})
            spool = running.agent.stores.spool
            real, spool._volume = spool._volume, gone
            await running.until(lambda: control_plane.syncs[-1]["state"] == "disk_full")
            assert control_plane.syncs[-1]["room"]["lines"] == 0
            assert [chunk["chunk_id"] for chunk in control_plane.syncs[-1]["chunks"]] == ["chunk-0"]
            engine.hold.set()
            await running.until(lambda: control_plane.done)
            spool._volume = real
            await running.until(lambda: control_plane.syncs[-1]["state"] == "serving")
    assert not {log["event"] for log in logs} & {"sync.fault", "feeder.fault"}
    assert any(os.strerror(error) in str(log.get("reason")) for log in logs)


async def test_deaths_that_cannot_be_read_or_removed_stop_no_sync(
    start_agent: StartAgent, control_plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design §8 rule 5: they are told when the volume is back, and again until they are gone."""
    fails = True
    real_unlink, real_read = Path.unlink, Path.read_bytes

    def unlink(path: Path, *, missing_ok: bool = False) -> None:
        if path.suffix == ".json" and fails:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        real_unlink(path, missing_ok=missing_ok)

    def read_bytes(path: Path) -> bytes:
        if path.suffix == ".json" and unreadable:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real_read(path)

    monkeypatch.setattr(Path, "unlink", unlink)
    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    unreadable = True
    async with start_agent() as running:
        journal = running.agent.stores.journal
        journal.enter("elsewhere", 1, 7, solo=True)
        death = journal.record_death("crash")
        before = len(control_plane.syncs)
        await running.until(lambda: len(control_plane.syncs) > before + 3)
        assert control_plane.deaths == {}
        unreadable = False
        control_plane.add_chunk(completion_lines(2))
        await running.until(lambda: control_plane.done)
        assert list(control_plane.deaths) == [death.death_id]
        fails = False
        await running.until(lambda: control_plane.syncs[-1]["deaths"] == [])


async def test_what_an_earlier_process_stored_is_read_beside_online_traffic(
    start_agent: StartAgent, control_plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of large results take seconds, in which online requests would stand still."""
    for first in (1, 7):
        control_plane.add_chunk(completion_lines(6, first=first))
    control_plane.fail_uploads = 10_000
    engine = FakeEngine()
    async with start_agent(engine, hand_back_s=0) as running:
        await running.until(lambda: len(engine.executed) == 12 and not engine.resident)
    control_plane.fail_uploads = 0
    readers: list[threading.Thread] = []
    read = spool.read_stored

    def noted(folder: Path) -> spool.Stored:
        readers.append(threading.current_thread())
        return read(folder)

    monkeypatch.setattr(spool, "read_stored", noted)
    async with start_agent(FakeEngine()) as running:
        await running.until(lambda: control_plane.done)
    assert sorted(control_plane.results) == list(range(1, 13))
    assert len(readers) == 2
    assert threading.current_thread() not in readers
