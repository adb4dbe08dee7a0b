"""One leased chunk: which of its lines are fetched, running, finished."""

from __future__ import annotations

import asyncio

from weir_agent import wire
from weir_agent.chunks.spool import ChunkFile


class HeldChunk:
    """The agent's state of a chunk."""

    def __init__(self, lease: wire.Lease, file: ChunkFile, *, taken_s: float) -> None:
        """``taken_s``: when the lease came, on the machine's monotonic clock."""
        self.lease = lease
        self.file = file
        self.deadline_s = None if lease.deadline_s is None else taken_s + lease.deadline_s
        self.running: dict[int, asyncio.Task[None]] = {}
        self.closing: asyncio.Task[None] | None = None
        self.failed_fetches = 0  # since the last page
        self._known: set[int] = set()
        self._no_more = False

    @property
    def fetched_to(self) -> int:
        """The last line that was fetched."""
        return max(self._known, default=0)

    @property
    def wants_lines(self) -> bool:
        """True while lines are to be fetched."""
        return self.closing is None and not self._no_more

    @property
    def waits_for_input(self) -> bool:
        """True while its next lines could not be fetched and none of the earlier ones is left."""
        idle = not self.running and self._known <= self.file.finished
        return bool(self.failed_fetches) and idle

    @property
    def complete(self) -> bool:
        """True when every line has a result."""
        return self._no_more and self._known <= self.file.finished

    @property
    def lines_left(self) -> int:
        """Lines without a result."""
        return max(0, self.lease.lines - len(self.file.finished))

    @property
    def tokens_left(self) -> int:
        """Estimated tokens of the lines without a result."""
        return self.lease.tokens * self.lines_left // max(1, self.lease.lines)

    def fetched(self, lines: list[wire.InputLine]) -> list[wire.InputLine]:
        """Notes a page of lines; returns those that have no result yet."""
        self.failed_fetches = 0
        self._known.update(line.line for line in lines)
        self._no_more = not lines or len(self._known) >= self.lease.lines
        finished = self.file.finished
        return [line for line in lines if line.line not in finished]

    def report(self) -> wire.HeldChunk:
        """The chunk as a sync lists it."""
        return wire.HeldChunk(
            chunk_id=self.lease.chunk_id,
            attempt=self.lease.attempt,
            nonce=self.lease.nonce,
            lines_done=len(self.file.finished),
        )
