"""Who gives way when online work needs blocks or a slot. Pure choices over running requests."""

from collections.abc import Callable, Iterable

from weir_engine.ids import RequestId
from weir_engine.request import Request


def offline_victims(
    running: Iterable[Request],
    *,
    blocks: int,
    slots: int,
    releasable: Callable[[RequestId], int],
) -> list[Request] | None:
    """The offline requests to preempt so that ``blocks`` and ``slots`` come free; None: not enough.

    Those that lose least go first: fewest tokens to compute again for each block freed, the latest
    arrival on ties. A request whose blocks are all shared frees none and is
    taken for its slot only.

    Source: Weir; HyGen §4.1 preempts by queue priority, BROS §5.2 by swap cost.
    """
    scored = []
    for request in running:
        freed = releasable(request.id)
        lost = request.computed_tokens / max(freed, 1)
        scored.append((freed == 0 and slots == 0, lost, -request.arrival_s, request.id, freed))
    scored.sort()
    by_id = {request.id: request for request in running}
    victims: list[Request] = []
    for useless, _, _, request_id, freed in scored:
        if blocks <= 0 and slots <= 0:
            break
        if useless or (slots <= 0 and freed == 0):
            continue
        victims.append(by_id[request_id])
        blocks -= freed
        slots -= 1
    return victims if blocks <= 0 and slots <= 0 else None


def online_victim(running: Iterable[Request], needy: Request) -> Request | None:
    """The online request that gives way to another when no offline one is left: the last arrival.

    None when the needy one is itself the last: it waits.
    """
    last = max(running, key=lambda request: (request.arrival_s, request.id), default=None)
    if last is None or (last.arrival_s, last.id) <= (needy.arrival_s, needy.id):
        return None
    return last
