"""A KV block that two requests fill from its two ends, and which block is shared next.

Slots are counted from the left. Online fills them from the left, offline from the right; where they
meet, online overwrites. Values and pure functions; who holds a block is the manager's business.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weir_engine.request import Request


def filled_slots(tokens: int, at: int, size: int) -> int:
    """Slots that a request of ``tokens`` tokens fills in the ``at``-th of its blocks, 0 to size."""
    return min(max(tokens - at * size, 0), size)


@dataclass(slots=True, kw_only=True)
class SharedBlock:
    """One block with an offline request at its back and, while that one lives, an online in front.

    ``front_at`` and ``back_at`` are the block's places in the two requests' tables. ``lost_slots``
    of the back's were overwritten: their KV is checkpointed on the host, and stays so when the
    front has ended.

    Source: BROS §5.1 (Fig. 9) and §5.2, lazy checkpointing. Deviation: the front is never
    overwritten, so that what an online request needs for its next token is always there.
    """

    back: Request
    back_at: int
    front: Request | None = None
    front_at: int = 0
    lost_slots: int = 0

    def settle(self, size: int) -> int:
        """Checkpoint the slots that the front has grown over; answers with how many they are."""
        if self.front is None:
            return 0
        front = filled_slots(self.front.computed_tokens, self.front_at, size)
        back = filled_slots(self.back.computed_tokens, self.back_at, size)
        grown = max(front + back - size - self.lost_slots, 0)
        self.lost_slots += grown
        return grown

    def disturbs(self, size: int) -> bool:
        """True when the back cannot be read and grown in the next step, whatever the front does."""
        if self.lost_slots or self.front is None:  # without a front it is kept for lost slots
            return True
        front = filled_slots(self.front.known_tokens, self.front_at, size)
        back = filled_slots(self.back.known_tokens, self.back_at, size)
        return front + back > size


class Back(NamedTuple):
    """An offline request and its blocks; ``disturbed``: slots are lost, or blocked, already."""

    request: Request
    blocks: Sequence[int]
    disturbed: bool


class Claim(NamedTuple):
    """The front of one block: whose back it is, and at which place of that one's table."""

    block: int
    back: Request
    at: int


ClaimOrder = Callable[[Sequence[Back], Callable[[int], bool], int], Iterator[Claim]]
"""Of backs, a test whether a block's front may be taken, and the slots of a block: yields every
front that may, the next one first. Lazy: few are asked for."""


def most_empty_first(
    backs: Sequence[Back], usable: Callable[[int], bool], size: int
) -> Iterator[Claim]:
    """Blocks with the most empty slots first; of equally full ones the latest arrival's.

    Source: BROS §5.2, "always preempt BE cache blocks with the most empty slots".
    """
    ordered = sorted(backs, key=_latest)
    partial = []
    for back in ordered:
        for at in range(back.request.computed_tokens // size, len(back.blocks)):
            if usable(back.blocks[at]):
                filled = filled_slots(back.request.computed_tokens, at, size)
                partial.append((filled, Claim(back.blocks[at], back.request, at)))
    partial.sort(key=lambda entry: entry[0])
    yield from (claim for _, claim in partial)
    for back in ordered:
        full = min(back.request.computed_tokens // size, len(back.blocks))
        yield from _from_the_end(back, full, usable)


def one_at_a_time(
    backs: Sequence[Back],
    usable: Callable[[int], bool],
    size: int,  # noqa: ARG001
) -> Iterator[Claim]:
    """All blocks of one offline request before the next one's; those disturbed already first.

    Ours: a request that misses one slot cannot run, so as few as possible should miss any. Within
    a request the end goes first, and of requests the latest arrival.
    """
    for back in sorted(backs, key=lambda back: (not back.disturbed, *_latest(back))):
        yield from _from_the_end(back, len(back.blocks), usable)


def _from_the_end(back: Back, blocks: int, usable: Callable[[int], bool]) -> Iterator[Claim]:
    for at in range(blocks - 1, -1, -1):
        if usable(back.blocks[at]):
            yield Claim(back.blocks[at], back.request, at)


def _latest(back: Back) -> tuple[float, str]:
    return (-back.request.arrival_s, back.request.id)
