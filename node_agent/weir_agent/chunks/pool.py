"""In which order fetched lines enter the engine. The scheduler re-ranks what has entered."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from weir_agent import wire


@dataclass(frozen=True, kw_only=True, slots=True)
class PooledLine:
    """A fetched line that has not entered the engine."""

    lease: wire.Lease
    line: wire.InputLine


class LinePool(Protocol):
    """Fetched lines that wait for the engine."""

    def __len__(self) -> int:
        """How many lines wait."""
        ...

    def add(self, lease: wire.Lease, lines: Sequence[wire.InputLine]) -> None:
        """Lines of a chunk were fetched."""
        ...

    def next_lines(self, n: int, *, chunk_id: str | None = None) -> list[PooledLine]:
        """At most ``n`` lines, taken out; of one chunk only when it is named."""
        ...

    def remove(self, chunk_id: str) -> None:
        """Forgets the lines of a chunk."""
        ...


class ChunkOrderPool:
    """The order of the leases, which the control plane hands out sorted by common prefix."""

    def __init__(self) -> None:
        self._chunks: dict[str, deque[PooledLine]] = {}

    def __len__(self) -> int:
        """How many lines wait."""
        return sum(len(lines) for lines in self._chunks.values())

    def add(self, lease: wire.Lease, lines: Sequence[wire.InputLine]) -> None:
        """Lines of a chunk were fetched."""
        waiting = self._chunks.setdefault(lease.chunk_id, deque())
        waiting.extend(PooledLine(lease=lease, line=line) for line in lines)

    def next_lines(self, n: int, *, chunk_id: str | None = None) -> list[PooledLine]:
        """At most ``n`` lines, taken out; of one chunk only when it is named."""
        taken: list[PooledLine] = []
        for name in [chunk_id] if chunk_id is not None else list(self._chunks):
            waiting = self._chunks.get(name, deque())
            while waiting and len(taken) < n:
                taken.append(waiting.popleft())
            if not waiting:
                self._chunks.pop(name, None)
        return taken

    def remove(self, chunk_id: str) -> None:
        """Forgets the lines of a chunk."""
        self._chunks.pop(chunk_id, None)
