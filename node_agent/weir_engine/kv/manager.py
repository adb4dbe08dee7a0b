"""Which request holds which KV blocks of one engine: admission, growth, preemption, end.

Used by the simulator and by weir_torch; under vLLM its own block pool takes this place. What to
admit or preempt is the scheduler's decision: an allocation that does not fit is an error here.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import ClassVar

from weir_engine.errors import CapacityError, ConfigError, InvariantError
from weir_engine.ids import BlockHash, RequestClass, RequestId
from weir_engine.kv.block_cache import BlockCache
from weir_engine.kv.eviction import EvictionPolicy
from weir_engine.kv.holdings import Holding, Holdings
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

    cache_type: ClassVar[type[BlockCache]] = BlockCache

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
        self._block_size = block_size_tokens
        self._cache = self.cache_type(
            total_blocks=total_blocks,
            block_size_tokens=block_size_tokens,
            eviction=eviction,
            guard_blocks=guard_blocks,
            prefix_cache=prefix_cache,
        )
        self._holdings = Holdings(block_size_tokens=block_size_tokens)
        self._hit_tally = HitTally()
        self._kept: dict[RequestId, tuple[list[int], int]] = {}  # see ``keep``: blocks, free ones

    # -- reading (KvView) -------------------------------------------------------------------

    @property
    def total_blocks(self) -> int:
        """Blocks there are in all."""
        return self._cache.total

    @property
    def block_size_tokens(self) -> int:
        """Tokens a block holds."""
        return self._block_size

    @property
    def free_blocks(self) -> int:
        """Blocks held by no request; cached ones are included, they can be evicted."""
        return self._cache.num_free

    @property
    def offline_only_blocks(self) -> int:
        """Blocks referenced by offline requests, by no online one since they were last free."""
        return self._cache.offline_only

    def held_blocks(self, request_id: RequestId) -> int:
        """Blocks that the request references now; 0 for one that is not running."""
        holding = self._holdings.find(request_id)
        return 0 if holding is None else len(holding.blocks)

    def releasable_blocks(self, request_ids: Sequence[RequestId]) -> int:
        """Blocks that only these requests reference."""
        holdings = map(self._holdings.find, request_ids)
        return self._cache.releasable([held.blocks for held in holdings if held is not None])

    def hit(self, request: Request) -> PrefixHit:
        """The prefix hit that an admission now would get: at most the known tokens - 1."""
        return self._cache.hit(request)

    def held_by_online(self, request: Request, tokens: int) -> int:
        """Blocks of that hit's first ``tokens`` that online holds, up to one that it does not."""
        return self._cache.held_by_online(request, -(-tokens // self._block_size))

    def is_cached(self, block_hash: object) -> bool:
        """True when a computed block of that hash is in the cache."""
        return self._cache.is_cached(block_hash)

    def next_evicted(self, blocks: int) -> frozenset[BlockHash]:
        """Hashes that would leave the cache if ``blocks`` blocks were allocated now."""
        return self._cache.next_evicted(blocks)

    def blocks(self, request_id: RequestId) -> tuple[int, ...]:
        """The request's block table; empty for one that is not running."""
        holding = self._holdings.find(request_id)
        return () if holding is None else tuple(holding.blocks)

    def hit_counts(self, klass: RequestClass) -> HitCounts:
        """Prefix hits of a class since the start."""
        return self._hit_tally.of(klass)

    def usage(self) -> KvUsage:
        """Blocks by use now. Walks the free list: for telemetry, not for planning."""
        return self._cache.usage()

    # -- changing ---------------------------------------------------------------------------

    def set_guard(self, blocks: int) -> None:
        """Guard so many recent online blocks, where the eviction policy has a guard."""
        self._cache.set_guard(blocks)

    def expect(self, request: Request) -> None:
        """Count a waiting offline request's prompt: blocks that it wants are kept longer.

        Its admission, ``free`` and ``forget`` end the count; ``preempt`` starts it again. Online
        requests are not counted.

        Raises:
            DuplicateRequestError: it is counted already.
        """
        if not request.is_online:
            self._cache.expect(request)

    def forget(self, request_id: RequestId) -> None:
        """Count a waiting request no longer: it was handed back or cancelled."""
        self._cache.forget(request_id)

    def keep(self, request: Request, hit: PrefixHit) -> None:
        """Hold the blocks of a hit until the request is admitted with it, in the same step.

        What is allocated before may evict them otherwise: those that a preempted request has just
        given back above all. ``allocate`` takes them over; without it they are lost.

        Raises:
            InvariantError: the hit is not there (any more).
        """
        found = self._found(request, hit.tokens // self._block_size)
        self._kept[request.id] = (found, self._cache.free_among(found))
        self._cache.adopt(found, online=request.is_online)

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
            self._offer(blocks, hashes, online=online)

    def free(self, request_id: RequestId) -> int:
        """Take all blocks of a request that ended; returns how many became free.

        The count of a waiting request ends too. A request that holds nothing is no error.
        """
        self.forget(request_id)
        holding = self._holdings.pop(request_id)
        if holding is None:
            return 0
        return self._cache.release(holding.blocks, online=holding.online)

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
        self._cache.check(self._holdings.by_class(), both_ends=self._both_ends())

    # -- parts ------------------------------------------------------------------------------

    def _both_ends(self) -> frozenset[int]:
        """Blocks that an online and an offline request fill together; none where paged."""
        return frozenset()

    def _admit(self, request: Request, new_tokens: int, hit: PrefixHit | None) -> int:
        cache, size = self._cache, self._block_size
        expected = 0 if hit is None else hit.tokens // size
        fresh = blocks_for(expected * size + new_tokens, size) - expected
        kept = self._kept.get(request.id)
        if kept is None:
            found = self._found(request, expected)
            taken = fresh + cache.free_among(found)
            self._check_room(request, taken)
            cache.adopt(found, online=request.is_online)
        else:
            found, free = kept
            taken = fresh + free
            self._check_room(request, fresh)
            del self._kept[request.id]
        cache.forget(request.id, held=expected)
        blocks = found + self._take_fresh(request, fresh, at=expected)
        holding = Holding(online=request.is_online, blocks=blocks, hashed=expected)
        self._holdings.add(request.id, holding)
        self._hit_tally.admitted(request, expected * size)
        return taken

    def _found(self, request: Request, expected: int) -> list[int]:
        """The blocks of the hit that an admission states.

        Raises:
            InvariantError: it is not there (any more).
        """
        found = self._cache.found(request, expected)
        if len(found) != expected:
            raise InvariantError(
                f"request {request.id} was to find {expected} cached blocks and found {len(found)}"
            )
        return found

    def _check_room(self, request: Request, blocks: int) -> None:
        if blocks > self.free_blocks:
            raise CapacityError(
                f"request {request.id} needs {blocks} KV blocks and {self.free_blocks} of "
                f"{self.total_blocks} are free; preempt first"
            )

    def _take_fresh(self, request: Request, count: int, *, at: int) -> list[int]:  # noqa: ARG002
        """Blocks for a request, from its ``at``-th on: a layout may find them elsewhere."""
        return self._cache.take_fresh(count, online=request.is_online)

    def _offer(self, blocks: list[int], block_hashes: list[BlockHash], *, online: bool) -> None:
        """Computed blocks of requests that run to the prefix cache."""
        self._cache.cache(blocks, block_hashes, online=online)
