"""vLLM's free-block queue, in Weir's eviction order.

Has every method of ``FreeKVCacheBlockQueue``; the order is ``weir_engine.kv.free_list``'s.
Counts by class belong to ``ledger``.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from weir_engine.kv.eviction import EvictionPolicy
from weir_engine.kv.free_list import ClassedFreeList

# vLLM's KVCacheBlock; typed as Any because vLLM is not analysed.
Block = Any


class ClassedBlockQueue:
    """Free blocks of one vLLM ``BlockPool``, evicted by class and reference count, then age.

    ``blocks`` are all blocks of the pool, ``free`` the ids of those free now, in order.
    ``evicted_cached`` rises whenever a cached block left the cache, ``moves`` whenever one may have
    changed between free and held: readers that keep prefix hits compare both.
    """

    __slots__ = ("_blocks", "evicted_cached", "free", "moves")

    def __init__(
        self,
        blocks: Sequence[Block],
        free: Iterable[int],
        *,
        policy: EvictionPolicy | None = None,
        guard_blocks: int = 0,
    ) -> None:
        self._blocks = blocks
        self.free = ClassedFreeList(
            len(blocks), policy=policy, free=free, guard_blocks=guard_blocks
        )
        self.evicted_cached = 0
        self.moves = 0

    @property
    def num_free_blocks(self) -> int:
        """Blocks in the queue."""
        return self.free.num_free

    def popleft(self) -> Block:
        """Take the block that is evicted first.

        Raises:
            CapacityError: nothing is free.
        """
        return self._evicted(self.free.popleft())

    def popleft_n(self, n: int) -> list[Block]:
        """Take that many blocks, the first evicted first.

        Raises:
            CapacityError: fewer are free.
        """
        return [self._evicted(block_id) for block_id in self.free.popleft_n(n)]

    def remove(self, block: Block) -> None:
        """Take a block out of the middle: a request uses what it holds."""
        self.moves += 1
        self.free.remove(block.block_id)

    def append(self, block: Block) -> None:
        """Free one block as the youngest of its rank."""
        self.moves += 1
        self.free.append(block.block_id)

    def append_n(self, blocks: Sequence[Block]) -> None:
        """Free blocks; the first given is evicted first within its rank."""
        if blocks:
            self.moves += 1
            self.free.append_n([block.block_id for block in blocks])

    def prepend_n(self, blocks: Sequence[Block]) -> None:
        """Free blocks as the oldest of their ranks."""
        if blocks:
            self.free.prepend_n([block.block_id for block in blocks])

    def get_all_free_blocks(self) -> list[Block]:
        """Every free block in eviction order."""
        return [self._blocks[block_id] for block_id in self.free]

    def iter_blocks_after(self, cursor: Block | None) -> Iterator[Block]:
        """Free blocks that are evicted after ``cursor``; None: all of them."""
        ids = iter(self.free) if cursor is None else self.free.iter_after(cursor.block_id)
        return (self._blocks[block_id] for block_id in ids)

    def next_evicted(self, blocks: int) -> Iterator[Block]:
        """The blocks that the next ``blocks`` allocations would take."""
        for block_id, _ in zip(self.free, range(blocks), strict=False):
            yield self._blocks[block_id]

    def _evicted(self, block_id: int) -> Block:
        block = self._blocks[block_id]
        if block.block_hash is not None:
            self.evicted_cached += 1
        return block
