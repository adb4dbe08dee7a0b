"""What the scheduler asks about KV blocks, answered from vLLM's block pool. Reading only.

Counts by class come from ``ledger``; the free list from ``queue``.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from weir_agent.vllm_bridge.ledger import BlockLedger, FindBlock
from weir_agent.vllm_bridge.queue import Block, ClassedBlockQueue
from weir_agent.vllm_bridge.tails import SharedTails
from weir_engine.ids import BlockHash, RequestId
from weir_engine.kv.branches import Tail
from weir_engine.kv.view import PrefixHit
from weir_engine.request import Request

NO_HIT = PrefixHit(tokens=0, free_blocks=0)


@dataclass(slots=True, kw_only=True)
class _Found:
    """A prefix hit as it was found; ``keys`` are the hashes its blocks had then.

    ``tail`` is what it shares of the block behind them, as of ``version``; ``comes`` when another
    request computes more of that block now.
    """

    limit: int
    blocks: list[Block]
    keys: list[Any]
    evictions: int
    moves: int
    changes: int
    hit: PrefixHit
    tail: Tail | None = None
    comes: bool = False
    version: int = 0


class VllmKv:
    """``KvView`` over vLLM's KV cache manager with one full-attention group.

    ``find`` gives the block that vLLM would hit for a hash, ``table`` the blocks of a request,
    ``tails`` what it shares of the block behind its last whole one: a hit goes on into that block,
    which vLLM copies. Hits are kept by request and checked again only after a block left the cache,
    got a hash, or moved between free and held.
    """

    def __init__(
        self,
        *,
        total_blocks: int,
        queue: ClassedBlockQueue,
        ledger: BlockLedger,
        find: FindBlock,
        table: Callable[[str], list[Block]],
        tails: SharedTails,
    ) -> None:
        self._total = total_blocks
        self._block_size = tails.block_size_tokens
        self._queue = queue
        self._ledger = ledger
        self._find = find
        self._table = table
        self.tails = tails
        self._found: dict[RequestId, _Found] = {}
        self._blind: set[RequestId] = set()

    @property
    def total_blocks(self) -> int:
        """Usable blocks; vLLM's null block is none."""
        return self._total

    @property
    def free_blocks(self) -> int:
        """Blocks in vLLM's free queue, cached ones included."""
        return self._queue.free.num_free

    @property
    def offline_only_blocks(self) -> int:
        """Blocks referenced by offline requests only."""
        return self._ledger.offline_only_blocks

    def levels(self) -> dict[str, int]:
        """Blocks by use now, and what was evicted since the start, as the agent is told."""
        free, offline = self.free_blocks, self.offline_only_blocks
        return {
            "block_size_tokens": self._block_size,
            "total_blocks": self._total,
            "free_kv_blocks": free,
            "offline_kv_blocks": offline,
            "online_kv_blocks": self._total - free - offline,
            "evicted_cached_blocks": self._queue.evicted_cached,
        }

    def held_blocks(self, request_id: RequestId) -> int:
        """Blocks that the request references now."""
        return len(self._table(request_id))

    def releasable_blocks(self, request_ids: Sequence[RequestId]) -> int:
        """Blocks that only these requests reference."""
        tables = [self._table(request_id) for request_id in request_ids]
        held = Counter(block.block_id for table in tables for block in table)
        references = {block.block_id: block.ref_cnt for table in tables for block in table}
        return sum(references[block] == count for block, count in held.items())

    def hit(self, request: Request) -> PrefixHit:
        """The prefix hit that vLLM would give the request now."""
        hashes = request.block_hashes
        limit = min((request.known_tokens - 1) // self._block_size, len(hashes))
        if limit <= 0 or request.id in self._blind:
            return NO_HIT
        found = self._found.get(request.id)
        if found is None or found.limit != limit or not self._holds(found):
            blocks: list[Block] = []
            found = _Found(
                limit=limit,
                blocks=blocks,
                keys=[],
                evictions=self._queue.evicted_cached,
                moves=-1,
                changes=-1,
                hit=NO_HIT,
            )
            self._found[request.id] = found
        changes = self._ledger.hash_epoch + self.tails.changes
        if found.changes != changes:
            found.changes = changes
            self._extend(found, hashes)
            self._branch_off(found, request)
        if found.moves != self._queue.moves:
            found.moves = self._queue.moves
            tail = found.tail
            blocks = found.blocks if tail is None else [*found.blocks, tail.block]
            found.hit = PrefixHit(
                tokens=len(found.blocks) * self._block_size + (0 if tail is None else tail.tokens),
                free_blocks=[block.ref_cnt for block in blocks].count(0),
                comes=found.comes,
            )
        return found.hit

    def hit_blocks(self, request: Request, tokens: int) -> list[Block]:
        """The blocks of the first ``tokens`` of the request's hit, the copied one last."""
        self.hit(request)
        found = self._found.get(request.id)
        if found is None:
            return []
        blocks = found.blocks[: tokens // self._block_size]
        tail = found.tail
        if tail is not None and tokens == len(blocks) * self._block_size + tail.tokens:
            blocks.append(tail.block)
        return blocks

    def held_by_online(self, request: Request, tokens: int) -> int:
        """Blocks of the first ``tokens`` of its hit that online holds, up to one that it does not.

        Asked anew each time: a request that joins or leaves others on a block moves none.
        """
        online = self._ledger.table.online
        held = takewhile(lambda b: online(b.block_id), self.hit_blocks(request, tokens))
        return sum(1 for _ in held)

    def next_evicted(self, blocks: int) -> frozenset[BlockHash]:
        """Hashes that would leave the cache if ``blocks`` blocks were allocated now."""
        content_hash = self._ledger.content_hash
        return frozenset(
            content_hash(block.block_hash)
            for block in self._queue.next_evicted(blocks)
            if block.block_hash is not None
        )

    def ignore_cache(self, request_id: RequestId) -> None:
        """The request never reads the prefix cache (it asks for prompt log-probabilities)."""
        self._blind.add(request_id)

    def forget(self, request_id: RequestId) -> None:
        """The request waits no more: drop the hit that is kept for it."""
        self._found.pop(request_id, None)

    def ended(self, request_id: RequestId) -> None:
        """The request is gone; until then it may be preempted, and wait again."""
        self.forget(request_id)
        self._blind.discard(request_id)

    def _holds(self, found: _Found) -> bool:
        if found.evictions == self._queue.evicted_cached:
            return True
        found.evictions = self._queue.evicted_cached
        if found.tail is not None and not found.tail.holds:
            return False
        return [block.block_hash for block in found.blocks] == found.keys

    def _extend(self, found: _Found, hashes: list[BlockHash]) -> None:
        blocks = found.blocks
        before = len(blocks)
        for index in range(before, found.limit):
            block = self._find(hashes[index])
            if block is None:
                break
            blocks.append(block)
            found.keys.append(block.block_hash)
        if len(blocks) != before:
            found.moves = -1
            found.tail, found.comes, found.version = None, False, 0

    def _branch_off(self, found: _Found, request: Request) -> None:
        if -(-request.known_tokens // self._block_size) >= self._total:
            return  # the cache has no room for a block and its copy: it would wait for ever
        whole = len(found.blocks)
        version = self.tails.version(request.block_hashes[whole - 1]) if whole else 0
        if version == found.version:
            return
        found.version = version
        found.tail, found.comes = self.tails.find(request, whole)
        found.moves = -1
