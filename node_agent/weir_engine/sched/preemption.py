"""Who gives way when online work needs blocks or a slot. Pure choices over running requests."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from weir_engine.ids import RequestId
from weir_engine.request import Request

Releasable = Callable[[Sequence[RequestId]], int]


class Lack(NamedTuple):
    """What online work has too little of; 0 or less of one: there is enough."""

    blocks: int
    slots: int = 0

    @property
    def is_met(self) -> bool:
        """True when nothing is missing."""
        return self.blocks <= 0 and self.slots <= 0

    def less(self, blocks: int, slots: int) -> "Lack":
        """What is still missing when so much came free."""
        return Lack(self.blocks - blocks, self.slots - slots)


class Victim(NamedTuple):
    """An offline request that gives way; ``releasable`` blocks come free with it, in its turn."""

    request: Request
    releasable: int


class Displaceable:
    """The running offline requests that may give way in a step, and what comes free with them.

    ``releasable`` are the blocks that some requests hold and nobody else. Of the blocks of all of
    them ``adopted_blocks`` may have been taken meanwhile: it is not known whose.

    Source: Weir; HyGen §4.1 preempts by queue priority, BROS §5.2 by swap cost.
    """

    def __init__(
        self, running: Sequence[Request], *, releasable: Releasable, adopted_blocks: int = 0
    ) -> None:
        self.running = running
        self._releasable = releasable
        self._adopted_blocks = adopted_blocks

    def victims(self, lack: Lack) -> list[Victim] | None:
        """Those to preempt so that nothing is missing any more; None: all are not enough.

        Those that lose least go first. A request whose blocks are all shared frees none and is
        taken for its slot only. Where that is not enough, requests that share a prefix go together,
        with the blocks that they share.
        """
        return self._one_by_one(lack) or self._by_family(lack)

    def everyone(self) -> list[Victim]:
        """All of them, with all that comes free."""
        return self._together(self.running)

    def in_turn(self, releasable: Mapping[RequestId, int]) -> list[Request]:
        """Who goes first: fewest tokens to compute again for each block freed, then the latest.

        ``releasable`` are each one's own blocks.
        """

        def loss(request: Request) -> tuple[float, float, RequestId]:
            lost = request.computed_tokens / max(releasable[request.id], 1)
            return lost, -request.arrival_s, request.id

        return sorted(self.running, key=loss)

    def _one_by_one(self, lack: Lack) -> list[Victim] | None:
        own = {request.id: self._releasable([request.id]) for request in self.running}
        victims: list[Victim] = []
        adopted = self._adopted_blocks
        for request in self.in_turn(own):
            if lack.is_met:
                break
            releasable = own[request.id]
            if releasable or lack.slots > 0:
                victims.append(Victim(request, releasable))
                freed, adopted = freed_of(releasable, adopted)
                lack = lack.less(freed, 1)
        return victims if lack.is_met else None

    def _by_family(self, lack: Lack) -> list[Victim] | None:
        families: dict[object, list[Request]] = {}
        for request in self.running:
            # Whoever shares any block shares the first one.
            first = request.block_hashes[0] if request.block_hashes else request.id
            families.setdefault(first, []).append(request)
        scored = []
        for members in families.values():
            victims = self._together(members)
            lost = sum(request.computed_tokens for request in members)
            scored.append((lost / max(victims[-1].releasable, 1), members[0].id, victims))
        scored.sort(key=lambda item: item[:2])
        found: list[Victim] = []
        adopted = self._adopted_blocks
        for _, _, victims in scored:
            if lack.is_met:
                break
            found += victims
            freed, adopted = freed_of(victims[-1].releasable, adopted)
            lack = lack.less(freed, len(victims))
        return found if lack.is_met else None

    def _together(self, requests: Sequence[Request]) -> list[Victim]:
        if not requests:
            return []
        *others, last = requests
        releasable = self._releasable([request.id for request in requests])
        return [*(Victim(request, 0) for request in others), Victim(last, releasable)]


def freed_of(releasable: int, adopted_blocks: int) -> tuple[int, int]:
    """(Blocks that come free for sure, adopted blocks that others may still lack)."""
    taken = min(releasable, max(adopted_blocks, 0))
    return releasable - taken, adopted_blocks - taken


def online_victim(running: Iterable[Request], needy: Request) -> Request | None:
    """The online request that gives way to another when no offline one is left: the last arrival.

    None when the needy one is itself the last: it waits.
    """
    last = max(running, key=lambda request: (request.arrival_s, request.id), default=None)
    if last is None or (last.arrival_s, last.id) <= (needy.arrival_s, needy.id):
        return None
    return last
