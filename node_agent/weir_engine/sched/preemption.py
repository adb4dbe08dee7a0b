"""Who gives way when online work needs blocks or a slot. Pure choices over running requests."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from weir_engine.ids import RequestId
from weir_engine.request import Request

Releasable = Callable[[Sequence[RequestId]], int]


class Victim(NamedTuple):
    """An offline request that gives way; ``releasable`` blocks come free with it, in its turn."""

    request: Request
    releasable: int


def offline_victims(
    running: Sequence[Request],
    *,
    blocks: int,
    slots: int,
    releasable: Releasable,
    adopted_blocks: int = 0,
) -> list[Victim] | None:
    """The offline requests to preempt so that ``blocks`` and ``slots`` come free; None: not enough.

    Those that lose least go first: fewest tokens to compute again for each block freed, the latest
    arrival on ties. A request whose blocks are all shared frees none and is
    taken for its slot only. Where that is not enough, requests that share a prefix go together,
    with the blocks that they share. ``releasable`` are the blocks that some requests hold and
    nobody else, of which ``adopted_blocks`` may have been taken meanwhile.

    Source: Weir; HyGen §4.1 preempts by queue priority, BROS §5.2 by swap cost.
    """
    found = _one_by_one(running, blocks, slots, releasable, adopted_blocks)
    return found or _by_family(running, blocks, slots, releasable, adopted_blocks)


def everyone(running: Sequence[Request], releasable: Releasable) -> list[Victim]:
    """All of them, with all that comes free."""
    if not running:
        return []
    *others, last = running
    together = releasable([request.id for request in running])
    return [*(Victim(request, 0) for request in others), Victim(last, together)]


def _one_by_one(
    running: Sequence[Request],
    blocks: int,
    slots: int,
    releasable: Releasable,
    adopted_blocks: int,
) -> list[Victim] | None:
    scored = []
    for request in running:
        own = releasable([request.id])
        freed = max(0, own - adopted_blocks)
        lost = request.computed_tokens / max(freed, 1)
        scored.append((freed == 0 and slots == 0, lost, -request.arrival_s, request.id, freed, own))
    scored.sort()
    by_id = {request.id: request for request in running}
    victims: list[Victim] = []
    for useless, _, _, request_id, freed, own in scored:
        if blocks <= 0 and slots <= 0:
            break
        if useless or (slots <= 0 and freed == 0):
            continue
        victims.append(Victim(by_id[request_id], own))
        blocks -= freed
        slots -= 1
    return victims if blocks <= 0 and slots <= 0 else None


def _by_family(
    running: Sequence[Request],
    blocks: int,
    slots: int,
    releasable: Releasable,
    adopted_blocks: int,
) -> list[Victim] | None:
    families: dict[object, list[Request]] = {}
    for request in running:
        # Whoever shares any block shares the first one.
        first = request.block_hashes[0] if request.block_hashes else request.id
        families.setdefault(first, []).append(request)
    scored = []
    for members in families.values():
        victims = everyone(members, releasable)
        freed = max(0, victims[-1].releasable - adopted_blocks)
        lost = sum(request.computed_tokens for request in members)
        scored.append((lost / max(freed, 1), members[0].id, freed, victims))
    scored.sort(key=lambda item: item[:2])
    found: list[Victim] = []
    for _, _, freed, victims in scored:
        if blocks <= 0 and slots <= 0:
            break
        found += victims
        blocks -= freed
        slots -= len(victims)
    return found if blocks <= 0 and slots <= 0 else None


def online_victim(running: Iterable[Request], needy: Request) -> Request | None:
    """The online request that gives way to another when no offline one is left: the last arrival.

    None when the needy one is itself the last: it waits.
    """
    last = max(running, key=lambda request: (request.arrival_s, request.id), default=None)
    if last is None or (last.arrival_s, last.id) <= (needy.arrival_s, needy.id):
        return None
    return last
