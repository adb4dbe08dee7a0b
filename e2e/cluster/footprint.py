"""What a cluster makes on this machine, under fixed names, and its removal without a trace.

It starts nothing. A program of its own waits here for the end of the process that started a
cluster, and removes what that left behind if it was killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from e2e.cluster.binaries import ROOT
from e2e.cluster.cgroup import ControlGroup
from e2e.cluster.mounts import unmount_below
from e2e.cluster.network import Addresses, Network

NAME = "weir"
GROUP = "weir-cluster"
STATE = Path("/var/tmp/weir-cluster")  # noqa: S108 - only root can make it, and the mode is 0700
RUN = Path("/run/weir-cluster")
CONTAINER_LOGS = Path("/var/log/containers")
# Where the programs make folders whatever they are told; empty ones are removed afterwards.
_FOLDERS = (
    CONTAINER_LOGS,
    Path("/run/containerd"),
    Path("/var/lib/cni"),
    Path("/var/lib/kubelet"),
)
_REMOVED = b"removed\n"
_WATCH_END_S = 30


class RemainsError(RuntimeError):
    """Something of an earlier cluster does not go away; the message says what."""


def sweep() -> None:
    """Removes what a run made: processes, mounts, network, control groups, folders.

    Raises:
        RemainsError: processes do not end.
    """
    group = ControlGroup(GROUP)
    if not group.kill():
        raise RemainsError(f"processes {group.pids()} of an earlier cluster do not end")
    for folder in (STATE, RUN):
        unmount_below(folder)
    Network(NAME, Addresses()).remove()
    group.remove()
    if CONTAINER_LOGS.is_dir():
        for link in CONTAINER_LOGS.iterdir():
            if link.is_symlink() and link.readlink().is_relative_to(STATE):
                link.unlink()
    for folder in (STATE, RUN):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in _FOLDERS:
        _prune(folder)


class Guard:
    """A process that sweeps when this one ends without having done so."""

    def __init__(self, *, lock: int) -> None:
        """Starts it; it keeps the file ``lock`` open, and so locked, until it has swept."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            pass_fds=(lock,),
            start_new_session=True,  # what ends this process with its group leaves the guard
        )

    def dismiss(self) -> None:
        """Ends it: everything is removed."""
        self._process.communicate(_REMOVED, timeout=_WATCH_END_S)


def _prune(folder: Path) -> None:
    """Removes the empty folders of a tree, its root included."""
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):  # another program keeps something there
            Path(path).rmdir()


if __name__ == "__main__" and sys.stdin.buffer.read() != _REMOVED:
    sweep()
