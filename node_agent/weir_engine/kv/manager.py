"""The KV blocks of one engine: allocation, prefix cache, eviction, counts by class.

Used by the simulator and by weir_torch; under vLLM its own block pool takes this place. What to
admit or preempt is the scheduler's decision: an allocation that does not fit is an error here.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, islice

from weir_engine.errors import CapacityError, ConfigError, InvariantError
from weir_engine.ids import BlockHash, RequestClass, RequestId
from weir_engine.kv.audit import audit
from weir_engine.kv.block import BlockTable
from weir_engine.kv.eviction import EvictionPolicy
from weir_engine.kv.free_list import ClassedFreeList
from weir_engine.kv.hits import KnownHits
from weir_engine.kv.holdings import Holding, Holdings
from weir_engine.kv.prefix_index import PrefixIndex
from weir_engine.kv.references import ReferenceCounter
from weir_engine.kv.reserve import blocks_for
from weir_engine.kv.usage import HitCounts, HitTally, KvUsage
from weir_engine.kv.view import PrefixHit
from weir_engine.request import Request


class KvManager:
    """Fixed-size KV blocks with a prefix cache, shared by online and offline requests.

    Each block counts its online and its offline references; it is free when it has none, and then
    keeps its hash until it is evicted. A block that online adopts counts as online's until it is
    free, and is evicted as online's until its hash is reset. A call that raises has changed
    nothing. ``guard_blocks``: see ``set_guard``; without ``prefix_cache`` no block gets a hash.

    Raises:
        ConfigError: no blocks, or a block of no tokens.
    """

    def __init__(
        self,
        *,
        total_blocks: int,
        block_size_tokens: int,
        eviction: EvictionPolicy | None = None,
        guard_blocks: int = 0,
        prefix_cache: bool = True,
    ) -> None:
        if total_blocks < 1 or block_size_tokens < 1:
            raise ConfigError(
                "total_blocks and block_size_tokens must be 1 or more, got "
                f"{total_blocks} and {block_size_tokens}"
            )
        self._total = total_blocks
        self._block_size = block_size_tokens
        self._prefix_cache = prefix_cache
        self._table = BlockTable(total_blocks)
        self._free = ClassedFreeList(total_blocks, policy=eviction, guard_blocks=guard_blocks)
        self._index = PrefixIndex()
        self._waiting = ReferenceCounter(self._on_references)
        self._holdings = Holdings(block_size_tokens=block_size_tokens)
        self._hits = KnownHits(
            self._index, self._table.references, block_size_tokens=block_size_tokens
        )
        self._next_evicted: dict[int, frozenset[BlockHash]] = {}  # emptied by every change
        self._hit_tally = HitTally()
        self._evicted_cached = 0

    # -- reading (KvView) -------------------------------------------------------------------

    @property
    def total_blocks(self) -> int:
        """Blocks there are in all."""
        return self._total

    @property
    def block_size_tokens(self) -> int:
        """Tokens a block holds."""
        return self._block_size

    @property
    def free_blocks(self) -> int:
        """Blocks held by no request; cached ones are included, they can be evicted."""
        return self._free.num_free

    @property
    def offline_only_blocks(self) -> int:
        """Blocks referenced by offline requests, by no online one since they were last free."""
        return self._table.offline_only

    def held_blocks(self, request_id: RequestId) -> int:
        """Blocks that the request references now; 0 for one that is not running."""
        holding = self._holdings.find(request_id)
        return 0 if holding is None else len(holding.blocks)

    def releasable_blocks(self, request_ids: Sequence[RequestId]) -> int:
        """Blocks that only these requests reference."""
        held: Counter[int] = Counter()
        for request_id in request_ids:
            holding = self._holdings.find(request_id)
            if holding is not None:
                held.update(holding.blocks)
        references = self._table.references
        return sum(references[block] == count for block, count in held.items())

    def hit(self, request: Request) -> PrefixHit:
        """The prefix hit that an admission now would get: at most the known tokens - 1."""
        return self._hits.hit(request)

    def is_cached(self, block_hash: object) -> bool:
        """True when a computed block of that hash is in the cache."""
        return block_hash in self._index

    def next_evicted(self, blocks: int) -> frozenset[BlockHash]:
        """Hashes that would leave the cache if ``blocks`` blocks were allocated now."""
        known = self._next_evicted.get(blocks)
        if known is None:
            hashes = self._table.hashes
            first = {hashes[block] for block in islice(self._free, blocks)}
            known = frozenset([block_hash for block_hash in first if block_hash is not None])
            self._next_evicted[blocks] = known
        return known

    def blocks(self, request_id: RequestId) -> tuple[int, ...]:
        """The request's block table; empty for one that is not running."""
        holding = self._holdings.find(request_id)
        return () if holding is None else tuple(holding.blocks)

    def hit_counts(self, klass: RequestClass) -> HitCounts:
        """Prefix hits of a class since the start."""
        return self._hit_tally.of(klass)

    def usage(self) -> KvUsage:
        """Blocks by use now. Walks the free list: for telemetry, not for planning."""
        free = self._free.num_free
        return KvUsage(
            total_blocks=self._total,
            free_blocks=free,
            cached_free_blocks=sum(self._free.label(block).cached for block in self._free),
            online_blocks=self._total - free - self._table.offline_only,
            offline_only_blocks=self._table.offline_only,
            evicted_cached_blocks=self._evicted_cached,
        )

    # -- changing ---------------------------------------------------------------------------

    def set_guard(self, blocks: int) -> None:
        """Guard so many recent online blocks, where the eviction policy has a guard."""
        self._free.set_guard(blocks)
        self._changed()

    def expect(self, request: Request) -> None:
        """Count a waiting offline request's prompt: blocks that it wants are kept longer.

        Its admission, ``free`` and ``forget`` end the count; ``preempt`` starts it again. Online
        requests are not counted.

        Raises:
            DuplicateRequestError: it is counted already.
        """
        if not request.is_online:
            self._waiting.add(request.id, self._full_hashes(request))

    def forget(self, request_id: RequestId) -> None:
        """Count a waiting request no longer: it was handed back or cancelled."""
        self._hits.forget(request_id)
        self._waiting.remove(request_id)

    def allocate(self, request: Request, *, new_tokens: int, hit: PrefixHit | None = None) -> int:
        """Give the request the blocks to compute ``new_tokens`` more; returns how many were taken.

        A request without blocks is admitted: it takes the blocks of ``hit`` (None: no hit), then
        fresh ones. A running one takes what it lacks beyond its computed tokens; ``hit`` is None.

        Raises:
            CapacityError: not enough blocks are free; the plan counted wrong.
            InvariantError: the hit is not there (any more), or a running request states one.
        """
        holding = self._holdings.find(request.id)
        if holding is None:
            return self._admit(request, new_tokens, hit)
        if hit is not None and hit.tokens:
            raise InvariantError(
                f"request {request.id} holds {len(holding.blocks)} blocks and states a hit of "
                f"{hit.tokens} tokens; only an admission has a hit"
            )
        held = len(holding.blocks)
        lacking = blocks_for(request.computed_tokens + new_tokens, self._block_size) - held
        if lacking <= 0:
            return 0
        self._check_room(request, lacking)
        holding.blocks += self._take_fresh(request, lacking, at=held)
        return lacking

    def extend(self, requests: Sequence[Request]) -> None:
        """One more block, in order, for each of running requests whose blocks are full.

        What ``allocate`` of a token each would do.

        Raises:
            UnknownRequestError: one holds no blocks.
            CapacityError: not enough blocks are free; the plan counted wrong.
        """
        full = self._holdings.full(requests)
        if not full:
            return
        self._check_room(full[0][0], len(full))
        for _, run in groupby(full, key=lambda each: each[1].online):
            own = list(run)
            request, holding = own[0]
            fresh = self._take_fresh(request, len(own), at=len(holding.blocks))
            for (_, holding), block in zip(own, fresh, strict=True):
                holding.blocks.append(block)

    def commit(self, request: Request) -> None:
        """Put the request's full computed blocks into the prefix index, as far as hashes are known.

        Call it after each step, when ``computed_tokens`` has been raised. A block whose content
        another block already holds stays private.

        Raises:
            UnknownRequestError: it holds no blocks.
            InvariantError: it computed more tokens than its blocks hold.
        """
        self.commit_all((request,))

    def commit_all(self, requests: Iterable[Request]) -> None:
        """``commit`` of each, in order.

        Raises:
            UnknownRequestError: one holds no blocks.
            InvariantError: one computed more tokens than its blocks hold.
        """
        for online, blocks, hashes in self._holdings.newly_full(requests):
            if self._prefix_cache:
                self._cache(blocks, hashes, online=online)
                self._changed()

    def free(self, request_id: RequestId) -> int:
        """Take all blocks of a request that ended; returns how many became free.

        The count of a waiting request ends too. A request that holds nothing is no error.
        """
        self.forget(request_id)
        holding = self._holdings.pop(request_id)
        if holding is None:
            return 0
        self._changed()
        # The end of a prefix is evicted before its start.
        released = self._table.release_all(holding.blocks[::-1], online=holding.online)
        hashes = map(self._table.hashes.__getitem__, released)
        self._free.append_wanted(released, self._waiting.counts(hashes))
        return len(released)

    def preempt(self, request: Request) -> int:
        """Take all blocks of a running request that will resume; returns how many became free.

        What it computed in full blocks stays in the cache until evicted, and an offline request
        counts as waiting for it.

        Raises:
            UnknownRequestError: it holds no blocks.
        """
        self._holdings.of(request.id)
        released = self.free(request.id)
        self.expect(request)
        return released

    def settle(self) -> int:
        """Copy out the slots that the last step overwrote; how many. Paged blocks have none."""
        return 0

    def restore(self, request: Request) -> int:  # noqa: ARG002
        """Bring a running request's copied slots back; how many. Paged blocks have none."""
        return 0

    def check(self) -> None:
        """Verify that every sum adds up. O(blocks): for tests and debugging.

        Raises:
            InvariantError: with the numbers that disagree.
        """
        audit(
            table=self._table,
            free=self._free,
            index=self._index,
            holdings=self._holdings.by_class(),
            both_ends=self._both_ends(),
        )

    # -- parts ------------------------------------------------------------------------------

    def _both_ends(self) -> frozenset[int]:
        """Blocks that an online and an offline request fill together; none where paged."""
        return frozenset()

    def _changed(self) -> None:
        self._hits.changed()
        self._next_evicted.clear()

    def _full_hashes(self, request: Request) -> Sequence[BlockHash]:
        return request.block_hashes[: (request.known_tokens - 1) // self._block_size]

    def _admit(self, request: Request, new_tokens: int, hit: PrefixHit | None) -> int:
        expected = 0 if hit is None else hit.tokens // self._block_size
        found = self._cached(request, expected)
        fresh = blocks_for(expected * self._block_size + new_tokens, self._block_size) - expected
        references = self._table.references
        revived = [block for block in found if not references[block]]
        self._check_room(request, fresh + len(revived))
        online = request.is_online
        for block in revived:
            self._free.remove(block)
        if online:
            for block in found:
                self._free.mark_online(block)
        self._table.take_all(found, online=online)
        self._hits.forget(request.id)
        self._waiting.remove(request.id, held=expected)
        taken = self._take_fresh(request, fresh, at=expected)
        holding = Holding(online=online, blocks=found + taken, hashed=expected)
        self._holdings.add(request.id, holding)
        self._hit_tally.admitted(request, expected * self._block_size)
        self._changed()
        return fresh + len(revived)

    def _cached(self, request: Request, expected: int) -> list[int]:
        """The blocks of the hit that an admission states.

        Raises:
            InvariantError: it is not there (any more).
        """
        most = min((request.known_tokens - 1) // self._block_size, expected)
        found = self._hits.blocks(request, most)
        if len(found) != expected:
            raise InvariantError(
                f"request {request.id} was to find {expected} cached blocks and found {len(found)}"
            )
        return found

    def _check_room(self, request: Request, blocks: int) -> None:
        if blocks > self._free.num_free:
            raise CapacityError(
                f"request {request.id} needs {blocks} KV blocks and {self._free.num_free} of "
                f"{self._total} are free; preempt first"
            )

    def _take_fresh(self, request: Request, count: int, *, at: int) -> list[int]:  # noqa: ARG002
        """Blocks for a request, from its ``at``-th on: a layout may find them elsewhere."""
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
        self._table.take_all(blocks, online=request.is_online)
        self._changed()
        return blocks

    def _cache(self, blocks: list[int], block_hashes: list[BlockHash], *, online: bool) -> None:
        """Blocks that a request holds have their hashes from now on, if no other block has."""
        hashes = self._table.hashes
        own = self._index.put_all(block_hashes, blocks)
        for block_hash, block in own:
            hashes[block] = block_hash
        self._free.mark_held_cached([block for _, block in own], online=online)

    def _on_references(self, hashes: Sequence[BlockHash]) -> None:
        """New counts of hashes: to the free blocks among theirs. The others get it when freed."""
        references, free, waiting = self._table.references, self._free, self._waiting
        blocks = self._index.find(hashes)
        if blocks.count(None) < len(blocks):
            for block_hash, block in zip(hashes, blocks, strict=True):
                if block is not None and not references[block]:
                    free.set_references(block, waiting.count(block_hash))
        self._next_evicted.clear()
