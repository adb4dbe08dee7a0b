"""Prefix hits of waiting requests, kept from one question to the next.

A plan asks for the same few requests step after step: what was found stays found until one of its
blocks is evicted. It asks for those that share a prefix one after the other: what was found for the
last one is tried first. Which hit a request may use is the manager's business.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weir_engine.ids import BlockHash, RequestId
from weir_engine.kv.prefix_index import PrefixIndex
from weir_engine.kv.view import PrefixHit
from weir_engine.request import Request

_NO_HIT = PrefixHit(tokens=0, free_blocks=0)
_MOST = 4096


@dataclass(kw_only=True, slots=True)
class _Found:
    """A hit as it was at ``epoch``; no block of it had been evicted when ``drops`` blocks had.

    ``blocks`` are those of the first of ``hashes``.
    """

    limit: int
    hashes: list[BlockHash]
    blocks: list[int]
    hit: PrefixHit
    epoch: int
    drops: int


class KnownHits:
    """Hits by request, brought up to date when they are asked for.

    ``references`` are the references of every block; the owner says when they changed, which blocks
    lost their hashes, and which requests wait no more.
    """

    __slots__ = (
        "_block_size_tokens",
        "_dropped",
        "_epoch",
        "_found",
        "_index",
        "_last",
        "_references",
    )

    def __init__(
        self, index: PrefixIndex, references: Sequence[int], *, block_size_tokens: int
    ) -> None:
        self._index = index
        self._references = references
        self._block_size_tokens = block_size_tokens
        self._epoch = 0
        self._dropped: list[int] = []
        self._found: dict[RequestId, _Found] = {}
        self._last: _Found | None = None  # brought up to date last

    def hit(self, request: Request) -> PrefixHit:
        """What it would find now: at most its known tokens - 1."""
        size = self._block_size_tokens
        limit = min((request.known_tokens - 1) // size, len(request.block_hashes))
        found = self._found.get(request.id)
        if found is None or found.limit != limit or not self._holds(found):
            found = self._remember(request, limit)
        if found.epoch != self._epoch:
            found.hashes = request.block_hashes
            self._update(found)
        return found.hit

    def blocks(self, request: Request, most: int) -> list[int]:
        """The blocks of the hit that it would get now, at most so many."""
        found = self._found.get(request.id)
        known = [] if found is None or not self._holds(found) else found.blocks[:most]
        return known + self._index.match(request.block_hashes, most, len(known))

    def changed(self) -> None:
        """Blocks were taken, freed or got hashes."""
        self._epoch += 1

    def dropped(self, blocks: Iterable[int]) -> None:
        """These blocks lost their hashes."""
        self._dropped += blocks

    def forget(self, request_id: RequestId) -> None:
        """A request waits no more; one that was never asked for is no error."""
        self._found.pop(request_id, None)

    def _holds(self, found: _Found) -> bool:
        new = self._dropped[found.drops :]
        return not new or set(new).isdisjoint(found.blocks)

    def _remember(self, request: Request, limit: int) -> _Found:
        if max(len(self._found), len(self._dropped)) > _MOST:
            self._found.clear()
            self._dropped.clear()
        found = _Found(
            limit=limit,
            hashes=request.block_hashes,
            blocks=[],
            hit=_NO_HIT,
            epoch=-1,
            drops=len(self._dropped),
        )
        self._found[request.id] = found
        return found

    def _update(self, found: _Found) -> None:
        """Adds what there is beyond the blocks that were found before: those are there."""
        blocks, last = found.blocks, self._last
        if last is not None and last.epoch != self._epoch:
            last = None
        shared = last is not None and len(blocks) < len(last.blocks) <= found.limit
        if last is not None and shared:
            end = len(last.blocks) - 1  # hashes are chained: where one is equal, all before it are
            shared = found.hashes[end] == last.hashes[end]
            if shared:
                blocks[:] = last.blocks
        more = self._index.match(found.hashes, found.limit, len(blocks))
        blocks += more
        if last is not None and ((shared and not more) or blocks == last.blocks):
            found.hit = last.hit
        else:
            found.hit = PrefixHit(
                tokens=len(blocks) * self._block_size_tokens,
                free_blocks=list(map(self._references.__getitem__, blocks)).count(0),
            )
        found.epoch, found.drops = self._epoch, len(self._dropped)
        self._last = found
