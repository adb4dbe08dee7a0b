"""A tethered process ends with its parent, even when the parent is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from weir_cli.demo.tether import tethered

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:  # gone, before or while it was read
        return False
    return state != "Z"


def wait_gone(pid: int) -> bool:
    for _ in range(2400):
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


def test_a_tethered_process_ends_with_a_killed_parent() -> None:
    script = (
        "import subprocess, time\n"
        f"child = subprocess.Popen({tethered(SLEEPER)!r}, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_gone(child)


def test_a_tethered_process_runs_as_it_would_alone() -> None:
    command = tethered([sys.executable, "-c", "import sys; print('said'); sys.exit(3)"])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "said\n")
