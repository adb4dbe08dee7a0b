"""The KV manager whose private blocks an online and an offline request may fill from both ends.

When no block is free online takes the front of offline's blocks; only slots that it overwrites are
checkpointed, and only when it does. Source: BROS §5.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from typing_extensions import override

from weir_engine.errors import CapacityError, InvariantError
from weir_engine.ids import BlockHash, RequestId
from weir_engine.kv.eviction import EvictionPolicy
from weir_engine.kv.layout import (
    Back,
    Claim,
    ClaimOrder,
    SharedBlock,
    filled_slots,
    one_at_a_time,
)
from weir_engine.kv.manager import KvManager
from weir_engine.kv.view import Missing, PrefixHit
from weir_engine.request import Request


@dataclass(kw_only=True, slots=True)
class Copies:
    """Slots copied between device and host since the start, one token each."""

    out_slots: int = 0
    in_slots: int = 0


class BidirectionalKvManager(KvManager):
    """Blocks as in ``KvManager``; a private one may have an offline back and an online front.

    A block under a hash is never shared from both ends: it is a prefix of others. Online takes free
    blocks first. An offline request that lost slots keeps its blocks and waits; ``restore`` brings
    the slots back, in place where the front is free again, else in a free block.

    Source: BROS §5.1 and §5.2. Deviations: offline never takes the back of a block with a front,
    since every slot that it fills beyond the empty ones would be checkpointed at once; the order of
    ``claims`` is ours by default (the paper's is ``layout.most_empty_first``).
    """

    def __init__(
        self,
        *,
        total_blocks: int,
        block_size_tokens: int,
        eviction: EvictionPolicy | None = None,
        guard_blocks: int = 0,
        prefix_cache: bool = True,
        order: ClaimOrder = one_at_a_time,
    ) -> None:
        super().__init__(
            total_blocks=total_blocks,
            block_size_tokens=block_size_tokens,
            eviction=eviction,
            guard_blocks=guard_blocks,
            prefix_cache=prefix_cache,
        )
        self._order = order
        self._offline: dict[RequestId, Request] = {}
        self._shared: dict[int, SharedBlock] = {}
        self._by_back: dict[RequestId, dict[int, SharedBlock]] = {}
        self._by_front: dict[RequestId, set[int]] = {}
        self.copies = Copies()

    # -- reading (BothEndsView) -------------------------------------------------------------

    def claims(self, blocks: int) -> frozenset[RequestId] | None:
        """Whose blocks online would fill if it took ``blocks`` more than are free; None: too many.

        Those requests cannot be in the same step.
        """
        taken = list(islice(self._claim_order(), blocks))
        return frozenset(claim.back.id for claim in taken) if len(taken) == blocks else None

    def missing(self, request: Request) -> Missing:
        """What an offline request lacks before it can be in a step."""
        blocks = slots = fresh = 0
        for shared in self._disturbed(request.id).values():
            blocks += 1
            slots += shared.lost_slots
            fresh += shared.front is not None
        return Missing(blocks=blocks, slots=slots, fresh_blocks=fresh)

    @property
    def checkpointed_slots(self) -> int:
        """Slots, a token each, whose KV is on the host alone."""
        return sum(shared.lost_slots for shared in self._shared.values())

    def shared_block(self, block: int) -> SharedBlock | None:
        """The two ends of a block; None while it has, and had, no front beside its back."""
        return self._shared.get(block)

    # -- changing ---------------------------------------------------------------------------

    @override
    def allocate(self, request: Request, *, new_tokens: int, hit: PrefixHit | None = None) -> int:
        taken = super().allocate(request, new_tokens=new_tokens, hit=hit)
        if not request.is_online:
            self._offline[request.id] = request
        return taken

    @override
    def extend(self, requests: Sequence[Request]) -> None:
        for request in requests:  # each may have to find its block elsewhere
            self.allocate(request, new_tokens=1)

    @override
    def free(self, request_id: RequestId) -> int:
        self._offline.pop(request_id, None)
        for block in self._by_back.pop(request_id, {}):
            front = self._shared.pop(block).front
            if front is not None:
                self._by_front[front.id].discard(block)
        for block in self._by_front.pop(request_id, set()):
            shared = self._shared[block]
            shared.front = None
            if not shared.lost_slots:
                self._forget(block, shared)
        return super().free(request_id)

    @override
    def settle(self) -> int:
        slots = sum(shared.settle(self._block_size) for shared in self._shared.values())
        self.copies.out_slots += slots
        return slots

    @override
    def restore(self, request: Request) -> int:
        """Bring the lost slots of an offline request back, so that it can be in the step.

        Raises:
            UnknownRequestError: it holds no blocks.
            CapacityError: a block whose front is taken must move, and none is free.
        """
        holding = self._holdings.of(request.id)
        disturbed = self._disturbed(request.id)
        moving = [block for block, shared in disturbed.items() if shared.front is not None]
        if len(moving) > self.free_blocks:
            raise CapacityError(
                f"request {request.id} must move {len(moving)} blocks and {self.free_blocks} "
                "are free; leave it out of the step"
            )
        slots = 0
        for block, shared in disturbed.items():
            slots += shared.lost_slots
            if shared.front is not None:
                self._by_front[shared.front.id].discard(block)
                (holding.blocks[shared.back_at],) = self._take_fresh(request, 1, at=shared.back_at)
                self._cache.leave(block, online=False)
            self._forget(block, shared)
        self.copies.in_slots += slots
        return slots

    @override
    def check(self) -> None:
        super().check()
        for block, shared in self._shared.items():
            self._check_ends(block, shared)

    # -- parts ------------------------------------------------------------------------------

    @override
    def _check_room(self, request: Request, blocks: int) -> None:
        lacking = blocks - self.free_blocks
        if lacking > 0 and request.is_online and self.claims(lacking) is not None:
            return
        super()._check_room(request, blocks)

    @override
    def _take_fresh(self, request: Request, count: int, *, at: int) -> list[int]:
        free = min(count, self.free_blocks)
        blocks = super()._take_fresh(request, free, at=at)
        for claim in list(islice(self._claim_order(), count - free)):
            self._share(claim, request, at + len(blocks))
            blocks.append(claim.block)
        return blocks

    @override
    def _offer(self, blocks: list[int], block_hashes: list[BlockHash], *, online: bool) -> None:
        # One that was shared stays private to whoever keeps it.
        shared = self._shared.keys()
        if not shared.isdisjoint(blocks):
            kept = [at for at, block in enumerate(blocks) if block not in shared]
            blocks, block_hashes = [blocks[at] for at in kept], [block_hashes[at] for at in kept]
        super()._offer(blocks, block_hashes, online=online)

    def _share(self, claim: Claim, front: Request, front_at: int) -> None:
        own = self._by_back.setdefault(claim.back.id, {})
        shared = own.get(claim.block)
        if shared is None:
            shared = own[claim.block] = SharedBlock(back=claim.back, back_at=claim.at)
            self._shared[claim.block] = shared
        shared.front, shared.front_at = front, front_at
        self._by_front.setdefault(front.id, set()).add(claim.block)
        self._cache.share(claim.block, online=True)

    def _forget(self, block: int, shared: SharedBlock) -> None:
        del self._shared[block]
        del self._by_back[shared.back.id][block]

    def _disturbed(self, request_id: RequestId) -> dict[int, SharedBlock]:
        own = self._by_back.get(request_id, {})
        size = self._block_size
        return {block: shared for block, shared in own.items() if shared.disturbs(size)}

    def _claim_order(self) -> Iterator[Claim]:
        backs = [
            Back(request, self._holdings.of(request_id).blocks, bool(self._by_back.get(request_id)))
            for request_id, request in self._offline.items()
        ]
        return self._order(backs, self._cache.is_private, self._block_size)

    @override
    def _both_ends(self) -> frozenset[int]:
        return frozenset(b for b, shared in self._shared.items() if shared.front is not None)

    def _check_ends(self, block: int, shared: SharedBlock) -> None:
        ends = [(shared.back, shared.back_at)]
        if shared.front is not None:
            ends.append((shared.front, shared.front_at))
        for request, at in ends:
            held = self.blocks(request.id)
            if at >= len(held) or held[at] != block:
                raise InvariantError(
                    f"rule 1: block {block} is shared by request {request.id} as its block {at}, "
                    f"which holds {held}"
                )
        most = filled_slots(shared.back.computed_tokens, shared.back_at, self._block_size)
        if not 0 <= shared.lost_slots <= most:
            raise InvariantError(
                f"block {block} has {shared.lost_slots} checkpointed slots of {most} filled"
            )
