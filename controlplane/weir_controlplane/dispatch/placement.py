"""Which chunk of a batch a pod gets next: pure.

Chunks lie in prefix order. A pod goes on where it is, so that its prefix families stay on it; a
pod that joins, or has run out, starts at the end of the longest free run that nobody works at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from weir_controlplane.dispatch.bounds import RESULT_BYTES_PER_LINE, RESULT_BYTES_PER_TOKEN

Place = tuple[int, str]  # position in prefix order, then id: parts of a chunk share its position


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenChunk:
    """A chunk that waits for a pod."""

    chunk_id: str
    position: int
    lines: int
    tokens: int

    @property
    def place(self) -> Place:
        """Its place in the batch's order."""
        return (self.position, self.chunk_id)

    def result_bytes(self, line_result_bytes: int | None) -> int:
        """The worst case of its result, as the pod reckons that reserves for it; else a guess."""
        if line_result_bytes is not None:
            return self.lines * line_result_bytes
        return self.lines * RESULT_BYTES_PER_LINE + self.tokens * RESULT_BYTES_PER_TOKEN


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What a pod can still take. ``idle``: it holds nothing, so that one chunk always fits.

    Without that, a chunk larger than any pod's room would wait until its batch expires. Disk
    (``result_bytes``) binds in any case (§8.3).
    """

    lines: int
    tokens: int
    result_bytes: int
    idle: bool
    line_result_bytes: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether no chunk at all fits."""
        return self.lines <= 0 or self.tokens <= 0

    def fits(self, chunk: OpenChunk) -> bool:
        """Whether the pod can take the chunk."""
        small = chunk.lines <= self.lines and chunk.tokens <= self.tokens
        return not self.is_full and self.has_disk_for(chunk) and (self.idle or small)

    def has_disk_for(self, chunk: OpenChunk) -> bool:
        """Whether the pod can take the chunk, at the latest once it holds nothing."""
        return chunk.result_bytes(self.line_result_bytes) <= self.result_bytes

    @property
    def result_lines(self) -> int | None:
        """Lines whose results the pod can store; None where it does not say."""
        return self.result_bytes // self.line_result_bytes if self.line_result_bytes else None

    def part_of(self, chunk: OpenChunk) -> OpenChunk | None:
        """The chunk, or the part of it whose results the disk takes; None when it takes none."""
        if self.has_disk_for(chunk):
            return chunk
        lines = self.result_lines
        if not lines:
            return None
        return replace(chunk, lines=lines, tokens=-(-chunk.tokens * lines // chunk.lines))

    def less(self, chunk: OpenChunk) -> Room:
        """The room left when the chunk is taken."""
        return Room(
            lines=max(0, self.lines - chunk.lines),
            tokens=max(0, self.tokens - chunk.tokens),
            result_bytes=self.result_bytes - chunk.result_bytes(self.line_result_bytes),
            idle=False,
            line_result_bytes=self.line_result_bytes,
        )


def next_chunk(
    chunks: Sequence[OpenChunk], *, own: Place | None, others: Sequence[Place]
) -> OpenChunk | None:
    """The chunk that the pod should take; None when there is none.

    ``chunks`` by place. ``own``: where the pod took its last one. ``others``: what other pods
    hold, by place.
    """
    if not chunks:
        return None
    if own is not None:
        near = _neighbour(chunks, own, others)
        if near is not None:
            return near
    return _steal(chunks, others)


def _neighbour(
    chunks: Sequence[OpenChunk], own: Place, others: Sequence[Place]
) -> OpenChunk | None:
    at = bisect_left(chunks, own, key=lambda chunk: chunk.place)
    other = bisect_left(others, own)
    if at < len(chunks) and (other == len(others) or chunks[at].place < others[other]):
        return chunks[at]
    if at > 0 and (other == 0 or chunks[at - 1].place > others[other - 1]):
        return chunks[at - 1]
    return None


def _steal(chunks: Sequence[OpenChunk], others: Sequence[Place]) -> OpenChunk:
    places = [chunk.place for chunk in chunks]  # once, not at every step of a thousand searches
    cuts = sorted({bisect_left(places, place) for place in others})
    edges = [0, *(cut for cut in cuts if 0 < cut < len(chunks)), len(chunks)]
    runs = list(pairwise(edges))
    first, last = max(runs, key=lambda run: run[1] - run[0])
    if first not in cuts:
        return chunks[first]
    return chunks[last - 1] if last not in cuts else chunks[(first + last) // 2]
