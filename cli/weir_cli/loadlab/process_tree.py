"""What Linux says of a process and those under it (`/proc`)."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Processor seconds (user and system) of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def descendants(pid: int) -> list[int]:
    """A process and all processes under it."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, queue = [pid], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found.extend(children)
        queue.extend(children)
    return found


def find_descendant(pid: int, name: str) -> int | None:
    """The first descendant with that kernel name; None without one."""
    for child in descendants(pid):
        try:
            if Path(f"/proc/{child}/comm").read_text().strip() == name:
                return child
        except (FileNotFoundError, ProcessLookupError):
            continue
    return None
