"""The control group in which a whole cluster runs: whatever it started can be found and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
WEIGHTS = {"cpu.shares": 4096, "cpu.weight": 400}
"""Of the group, four times the default: all pods are one group beside every other process group."""


class ControlGroup:
    """One group below the root of every hierarchy; the kubelet puts its pods below it."""

    def __init__(self, name: str, *, mount: Path = MOUNT) -> None:
        """``name`` is a folder below each hierarchy's root; nothing is made yet."""
        self.name = name
        self._unified = (mount / "cgroup.controllers").exists()
        # Version 1 mounts a hierarchy for each controller (and version 2, without any, beside).
        roots = [mount] if self._unified else [path for path in mount.iterdir() if path.is_dir()]
        self._roots = [root for root in roots if (root / "cgroup.procs").exists()]

    @property
    def enter(self) -> tuple[str, ...]:
        """A command that goes into the group and becomes the command after it."""
        files = [root / self.name / "system" / "cgroup.procs" for root in self._tracking()]
        moves = " && ".join(f"echo $$ >{file}" for file in files)
        return ("sh", "-c", f'{moves} && exec "$@"', "sh")

    def create(self) -> None:
        """Makes the group in every hierarchy."""
        for root in self._roots:
            if self._unified:
                self._delegate(root)
            (root / self.name).mkdir(exist_ok=True)
            for name, weight in WEIGHTS.items():
                if (root / self.name / name).exists():
                    (root / self.name / name).write_text(str(weight))
            if self._unified:
                self._delegate(root / self.name)
        for root in self._tracking():
            (root / self.name / "system").mkdir(exist_ok=True)

    def pids(self) -> list[int]:
        """Every process of the group and of the groups below it."""
        return [
            int(line)
            for root in self._tracking()
            for file in _below(root / self.name, "cgroup.procs")
            for line in _lines(file)
        ]

    def kill_container(self, container_id: str) -> int:
        """Ends every process of one container at once, as a crash would; how many there were."""
        pids = [
            int(line)
            for root in self._tracking()
            for file in _below(root / self.name, "cgroup.procs")
            if container_id in file.parts
            for line in _lines(file)
        ]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(pids)

    def kill(self, *, within_s: float = 20.0) -> bool:
        """Ends every process of the group; whether all are gone in time."""
        deadline_s = time.monotonic() + within_s
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.1)
        return True

    def remove(self) -> None:
        """Removes the group from every hierarchy; its processes must be gone."""
        for root in self._roots:
            for folder in sorted(_below(root / self.name, ""), reverse=True):
                with contextlib.suppress(FileNotFoundError):
                    folder.rmdir()

    def _tracking(self) -> list[Path]:
        """The one hierarchy in which the processes are counted."""
        if self._unified:
            return self._roots
        return [root for root in self._roots if root.name == "pids"]

    def _delegate(self, folder: Path) -> None:
        available = (folder / "cgroup.controllers").read_text().split()
        control = folder / "cgroup.subtree_control"
        control.write_text(" ".join(f"+{name}" for name in available))


def _below(folder: Path, name: str) -> Iterator[Path]:
    """The files of a name in a folder and all below it; the folders themselves for no name."""
    for path, _, _ in os.walk(folder):
        yield Path(path) / name if name else Path(path)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:  # the group went meanwhile
        return []
