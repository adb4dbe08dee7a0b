"""Cores that are kept from halting: by loops that give way to everything, and end in any case."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import awake


def _gone(pid: int) -> bool:
    """Whether a process has ended; one that its parent has not asked for yet has, too."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


@pytest.fixture
def fair_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel's switch that says that cores are not shared by terminal."""
    switch = tmp_path / "sched_autogroup_enabled"
    switch.write_text("0\n")
    monkeypatch.setattr(awake, "AUTOGROUP", switch)
    return switch


@pytest.mark.usefixtures("fair_cores")
def test_a_loop_runs_on_each_core_at_idle_priority_until_the_end() -> None:
    core = min(os.sched_getaffinity(0))
    with awake.awake([core, core]) as (pid,):
        end = time.monotonic() + 30
        while os.sched_getscheduler(pid) != os.SCHED_IDLE and time.monotonic() < end:
            time.sleep(0.01)
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        assert os.sched_getaffinity(pid) == {core}
        assert not _gone(pid)
    assert _gone(pid)


def test_a_loop_ends_with_a_killed_parent(fair_cores: Path) -> None:
    code = (
        "import os, pathlib, sys; from benchmarks import awake\n"
        "awake.AUTOGROUP = pathlib.Path(sys.argv[1])\n"
        "with awake.awake([min(os.sched_getaffinity(0))]) as pids:\n"
        "    print(*pids, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(fair_cores)], capture_output=True, text=True, check=False
    )
    (pid,) = map(int, done.stdout.split())
    end = time.monotonic() + 30
    while not _gone(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert _gone(pid)


def test_cores_shared_by_terminal_are_told_with_the_remedy(fair_cores: Path) -> None:
    fair_cores.write_text("1\n")
    told = pytest.raises(SystemExit, match=r"is 1: .* write 0 there first: echo 0 > ")
    with told, awake.awake([0]):
        pytest.fail("loops would have run")


def test_nothing_runs_and_nothing_is_asked_without_cores(fair_cores: Path) -> None:
    fair_cores.write_text("1\n")
    with awake.awake(()) as loops:
        assert loops == []
