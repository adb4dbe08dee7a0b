"""Keeps idle cores from halting while something is timed.

A virtual core that halts is woken through its host, which can take longer than the work it is woken
for: an engine with little to do then looks slower than it is, and by how much depends on the host.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")

# Ends with its parent, also where that was killed.
_LOOP = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == int(sys.argv[2]):
    for _ in range(1_000_000):
        pass
"""


@contextlib.contextmanager
def awake(cores: Iterable[int]) -> Iterator[list[int]]:
    """A loop on each of ``cores`` that runs only where nothing else would; yields process ids.

    Raises:
        SystemExit: the kernel shares cores by terminal first, so that a loop would take its half.
    """
    wanted = sorted(set(cores))
    if wanted and AUTOGROUP.exists() and AUTOGROUP.read_text().strip() != "0":
        raise SystemExit(
            f"--keep-awake: {AUTOGROUP} is 1: idle loops would take time from what is measured; "
            f"write 0 there first: echo 0 > {AUTOGROUP}"
        )
    loops = [
        subprocess.Popen([sys.executable, "-c", _LOOP, str(core), str(os.getpid())])
        for core in wanted
    ]
    try:
        yield [loop.pid for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
