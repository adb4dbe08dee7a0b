"""The blocks of one engine as a prefix cache: which are free, which hold what, who references them.

Which request holds which block, and whether it may have one, is the manager's business.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, takewhile

from weir_engine.ids import BlockHash, RequestId
from weir_engine.kv.audit import audit
from weir_engine.kv.block import BlockTable
from weir_engine.kv.eviction import EvictionPolicy
from weir_engine.kv.free_list import ClassedFreeList
from weir_engine.kv.hits import KnownHits
from weir_engine.kv.prefix_index import PrefixIndex
from weir_engine.kv.references import ReferenceCounter
from weir_engine.kv.usage import KvUsage
from weir_engine.kv.view import PrefixHit
from weir_engine.request import Request


class BlockCache:
    """Blocks by id, counted by class, found by hash and given up in the order of eviction.

    A block is free when nobody references it, and keeps its hash until it is taken for something
    else. Without ``prefix_cache`` no block gets a hash.
    """

    def __init__(
        self,
        *,
        total_blocks: int,
        block_size_tokens: int,
        eviction: EvictionPolicy | None,
        guard_blocks: int,
        prefix_cache: bool,
    ) -> None:
        self.total = total_blocks
        self._block_size = block_size_tokens
        self._prefix_cache = prefix_cache
        self._table = BlockTable(total_blocks)
        self._free = ClassedFreeList(total_blocks, policy=eviction, guard_blocks=guard_blocks)
        self._index = PrefixIndex()
        self._waiting = ReferenceCounter(self._on_references)
        self._hits = KnownHits(
            self._index, self._table.references, block_size_tokens=block_size_tokens
        )
        self._next_evicted: dict[int, frozenset[BlockHash]] = {}  # emptied by every change
        self._evicted_cached = 0

    # -- reading ----------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """Blocks that nobody references; cached ones are included, they can be evicted."""
        return self._free.num_free

    @property
    def offline_only(self) -> int:
        """Blocks referenced by offline requests, by no online one since they were last free."""
        return self._table.offline_only

    def is_cached(self, block_hash: object) -> bool:
        """True when a computed block of that hash is in the cache."""
        return block_hash in self._index

    def is_private(self, block: int) -> bool:
        """True for a block of one holder that is no prefix of others."""
        return self._table.hashes[block] is None and self._table.references[block] == 1

    def releasable(self, tables: Iterable[Sequence[int]]) -> int:
        """Blocks that only the holders of these block tables reference."""
        held: Counter[int] = Counter()
        for blocks in tables:
            held.update(blocks)
        references = self._table.references
        return sum(references[block] == count for block, count in held.items())

    def free_among(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are free."""
        return list(map(self._table.references.__getitem__, blocks)).count(0)

    def hit(self, request: Request) -> PrefixHit:
        """The prefix hit that an admission now would get: at most the known tokens - 1."""
        return self._hits.hit(request)

    def found(self, request: Request, most: int) -> list[int]:
        """The blocks of that hit, at most so many."""
        return self._hits.blocks(request, min((request.known_tokens - 1) // self._block_size, most))

    def held_by_online(self, request: Request, most: int) -> int:
        """How many of those, from the first on, an online request references."""
        held = takewhile(self._table.online, self.found(request, most))
        return sum(1 for _ in held)

    def next_evicted(self, blocks: int) -> frozenset[BlockHash]:
        """Hashes that would leave the cache if ``blocks`` blocks were taken now."""
        known = self._next_evicted.get(blocks)
        if known is None:
            hashes = self._table.hashes
            first = {hashes[block] for block in islice(self._free, blocks)}
            known = frozenset([block_hash for block_hash in first if block_hash is not None])
            self._next_evicted[blocks] = known
        return known

    def usage(self) -> KvUsage:
        """Blocks by use now. Walks the free list: for telemetry, not for planning."""
        free = self._free.num_free
        return KvUsage(
            total_blocks=self.total,
            free_blocks=free,
            cached_free_blocks=sum(self._free.label(block).cached for block in self._free),
            online_blocks=self.total - free - self._table.offline_only,
            offline_only_blocks=self._table.offline_only,
            evicted_cached_blocks=self._evicted_cached,
        )

    def check(
        self,
        holdings: Mapping[RequestId, tuple[Sequence[int], bool]],
        *,
        both_ends: frozenset[int],
    ) -> None:
        """Verify that every sum adds up with what requests hold: see ``audit``. O(blocks).

        Raises:
            InvariantError: with the numbers that disagree.
        """
        audit(
            table=self._table,
            free=self._free,
            index=self._index,
            holdings=holdings,
            both_ends=both_ends,
        )

    # -- who wants what ---------------------------------------------------------------------

    def expect(self, request: Request) -> None:
        """Count a waiting request's prompt: blocks that it wants are kept longer.

        Raises:
            DuplicateRequestError: it is counted already.
        """
        full = (request.known_tokens - 1) // self._block_size
        self._waiting.add(request.id, request.block_hashes[:full])

    def forget(self, request_id: RequestId, *, held: int = 0) -> None:
        """Count a request no longer; it holds ``held`` of the blocks that it wanted."""
        self._hits.forget(request_id)
        self._waiting.remove(request_id, held=held)

    def set_guard(self, blocks: int) -> None:
        """Guard so many recent online blocks, where the eviction policy has a guard."""
        self._free.set_guard(blocks)
        self._changed()

    # -- taking and giving back -------------------------------------------------------------

    def adopt(self, blocks: Sequence[int], *, online: bool) -> None:
        """One more request of that class references blocks that it found."""
        references = self._table.references
        for block in blocks:
            if not references[block]:
                self._free.remove(block)
        if online:
            for block in blocks:
                self._free.mark_online(block)
        self._table.take_all(blocks, online=online)
        self._changed()

    def take_fresh(self, count: int, *, online: bool) -> list[int]:
        """Free blocks for a request of that class, those that are kept least; they lose their hash.

        Raises:
            CapacityError: fewer are free.
        """
        blocks = self._free.popleft_n(count)
        hashes, drop = self._table.hashes, self._index.drop
        evicted = []
        for block in blocks:
            block_hash = hashes[block]
            if block_hash is not None:
                drop(block_hash, block)
                hashes[block] = None
                evicted.append(block)
        self._hits.dropped(evicted)
        self._evicted_cached += len(evicted)
        self._table.take_all(blocks, online=online)
        self._changed()
        return blocks

    def share(self, block: int, *, online: bool) -> None:
        """One more request of that class references a block that another one holds."""
        self._table.take(block, online=online)

    def leave(self, block: int, *, online: bool) -> None:
        """A request of that class gives back a block that another one holds as well."""
        self._table.release(block, online=online)

    def release(self, blocks: Sequence[int], *, online: bool) -> int:
        """A request of that class gives its blocks back; how many became free.

        The end of a prefix is evicted before its start.
        """
        self._changed()
        released = self._table.release_all(blocks[::-1], online=online)
        hashes = map(self._table.hashes.__getitem__, released)
        self._free.append_wanted(released, self._waiting.counts(hashes))
        return len(released)

    def cache(
        self, blocks: Sequence[int], block_hashes: Sequence[BlockHash], *, online: bool
    ) -> None:
        """Blocks that a request holds have their hashes from now on, if no other block has."""
        if not self._prefix_cache:
            return
        hashes = self._table.hashes
        own = self._index.put_all(block_hashes, blocks)
        for block_hash, block in own:
            hashes[block] = block_hash
        self._free.mark_held_cached([block for _, block in own], online=online)
        self._changed()

    # -- parts ------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._hits.changed()
        self._next_evicted.clear()

    def _on_references(self, hashes: Sequence[BlockHash]) -> None:
        """New counts of hashes: to the free blocks among theirs. The others get it when freed."""
        references, free, waiting = self._table.references, self._free, self._waiting
        blocks = self._index.find(hashes)
        if blocks.count(None) < len(blocks):
            for block_hash, block in zip(hashes, blocks, strict=True):
                if block is not None and not references[block]:
                    free.set_references(block, waiting.count(block_hash))
        self._next_evicted.clear()
