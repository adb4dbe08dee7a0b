"""Whether this container is short of memory, noted on disk: the kernel may end all of it at once.

Kubernetes has it do so (`memory.oom.group` of cgroup 2), and nobody is left to say what happened.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

FILE_NAME = "short-of-memory"
SHORT_FRACTION = 0.9
_GROUPS = Path("/sys/fs/cgroup")


class MemoryWatch:
    """Memory of a control group that cannot be taken back, against the group's limit.

    ``was_short`` tells whether it was short when an earlier process looked last. Without a limit,
    or where nothing can be read, it never is.
    """

    def __init__(self, folder: Path, *, group: Path | None = None) -> None:
        """``folder`` has the note, ``group`` the group's files; default: this process's own."""
        self._note = folder / FILE_NAME
        self._group = _own_group() if group is None else group
        self.was_short = self._note.exists()
        self._noted = self.was_short

    def look(self) -> bool:
        """True while it is short; without forcing the disk, which a killed process need not."""
        short = self._fraction() >= SHORT_FRACTION
        if short != self._noted:
            with contextlib.suppress(OSError):
                if short:
                    self._note.touch(mode=0o600)
                else:
                    self._note.unlink(missing_ok=True)
                self._noted = short
        return short

    def _fraction(self) -> float:
        try:
            limit = (self._group / "memory.max").read_text(encoding="ascii").strip()
            if limit == "max":
                return 0.0
            # This has all of it, caches too, and is had for nothing: sums by kind are not.
            held_at_most = int((self._group / "memory.current").read_text(encoding="ascii"))
            if held_at_most < SHORT_FRACTION * int(limit):
                return 0.0
            stat = (self._group / "memory.stat").read_text(encoding="ascii")
            held = dict(line.split() for line in stat.splitlines())
            return (int(held["anon"]) + int(held["shmem"])) / max(1, int(limit))
        except (OSError, ValueError, KeyError):
            return 0.0


def _own_group() -> Path:
    """The group's folder; in a container the root of what it sees."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            own = _GROUPS / line.removeprefix("0::").lstrip("/")
            if line.startswith("0::") and (own / "memory.max").exists():
                return own
    return _GROUPS
