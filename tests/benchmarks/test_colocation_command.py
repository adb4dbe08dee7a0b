"""The command line of the co-location benchmark: what it refuses before it runs or writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.colocation import __main__ as command


def test_a_report_of_nothing_takes_no_results_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a folder that is misspelt."""
    monkeypatch.setattr(command, "report", lambda *_given, **_named: pytest.fail("it is written"))
    folder = tmp_path / "misspelt"
    with pytest.raises(SystemExit, match=f"none of the runs is in {folder}: name their --folder"):
        command.main(["--report-only", "--folder", str(folder)])
    assert not folder.exists()


@pytest.mark.parametrize("option", ["--measure", "--ramp"])
@pytest.mark.parametrize("given", ["nan", "inf", "0", "-5"])
def test_a_window_that_never_ends_or_begins_is_refused(
    option: str, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.parse([option, given])
    assert ended.value.code == 2
    assert f"argument {option}: must be 1 s or more" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "runs"
    with pytest.raises(SystemExit, match=f"--folder {folder}: Not a directory: name another"):
        command.main(["--folder", str(folder)])
