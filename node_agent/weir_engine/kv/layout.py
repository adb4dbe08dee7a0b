"""A KV block that two requests fill from its two ends, and which block is shared next.

Slots are counted from the left. Online fills them from the left, offline from the right; where they
meet, online overwrites. Values and pure functions; who holds a block is the manager's business.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
        if self.lost_slots:
            return True
        if self.front is None:
            return False
        front = filled_slots(self.front.known_tokens, self.front_at, size)
        back = filled_slots(self.back.known_tokens, self.back_at, size)
        return front + back > size


class Back(NamedTuple):
    """An offline request with blocks whose front is free; ``private`` says which, by place.

    ``disturbed``: some of its slots are lost, or blocked, already.
    """

    request: Request
    private: Sequence[tuple[int, int]]
    disturbed: bool


class Claim(NamedTuple):
    """The front of one block: whose back it is, and at which place of that one's table."""

    block: int
    back: Request
    at: int


ClaimOrder = Callable[[Iterable[Back], int], Iterator[Claim]]
"""Yields every block whose front may be taken, the next one first; ``size`` in slots."""


def most_empty_first(backs: Iterable[Back], size: int) -> Iterator[Claim]:
    """Blocks with the most empty slots first; of equally full ones the latest arrival's.

    Source: BROS §5.2, "always preempt BE cache blocks with the most empty slots".
    """
    claims = [
        (filled_slots(back.request.computed_tokens, at, size), _latest(back), -at, block, back)
        for back in backs
        for at, block in back.private
    ]
    for _, _, at, block, back in sorted(claims, key=lambda claim: claim[:3]):
        yield Claim(block, back.request, -at)


def one_at_a_time(backs: Iterable[Back], size: int) -> Iterator[Claim]:  # noqa: ARG001
    """All blocks of one offline request before the next one's; those disturbed already first.

    Ours: a request that misses one slot cannot run, so as few as possible should miss any. Within
    a request the end goes first, and of requests the latest arrival.
    """
    for back in sorted(backs, key=lambda back: (not back.disturbed, _latest(back))):
        for at, block in reversed(back.private):
            yield Claim(block, back.request, at)


def _latest(back: Back) -> tuple[float, str]:
    return (-back.request.arrival_s, back.request.id)
