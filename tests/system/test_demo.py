"""`weir demo` as a user runs it, without a terminal: its plain lines, its end, its clean-up."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import eventually

pytestmark = [pytest.mark.system, pytest.mark.vllm, pytest.mark.timeout(600)]
WEIR = (sys.executable, "-m", "weir_cli")


def processes_of(folder: Path) -> list[str]:
    """Every process that was started with the demo's folder in its command or environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in told:
            found.append(process.name)
    return found


def test_the_fast_demo_runs_a_batch_beside_online_traffic(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    command = [*WEIR, "demo", "--fast", "--seconds", "5", "--lines", "12", "--keep", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Weir's batch: completed; 12 of 12 lines answered exactly once, 0 with" in done.stdout
    assert "KV online" in done.stdout
    assert "\x1b" not in done.stdout
    assert processes_of(folder) == []


def test_ctrl_c_stops_everything(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    demo = subprocess.Popen(
        [*WEIR, "demo", "--keep", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert demo.stdout is not None
    assert b"starting" in demo.stdout.readline()
    assert eventually(lambda: len(processes_of(folder)) > 1)
    demo.send_signal(signal.SIGINT)
    said = demo.stdout.read().decode()
    demo.stdout.close()
    assert demo.wait() == 130
    assert "interrupted; everything is stopped" in said
    assert eventually(lambda: processes_of(folder) == [])


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    command = [*WEIR, "demo", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not empty" in done.stderr
