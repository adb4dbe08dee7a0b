"""The offline pool: near deadlines first, then fair among tenants, then by shared prefix or age.

It orders 50,000 waiting requests and is peeked 64 at a time; it never asks what fits or is cached.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import inf

from weir_engine.errors import ConfigError, DuplicateRequestError, UnknownRequestError
from weir_engine.ids import RequestId
from weir_engine.pool.fairness import DEFAULT_QUANTUM_TOKENS, VirtualTokenCounter
from weir_engine.pool.lane import Age, Lane
from weir_engine.pool.sorted_queue import SortedQueue
from weir_engine.request import Request

DEFAULT_URGENT_S = 600.0
_DRAWS = 64
_OTHERS_SHARE = 4  # one part in so many of a peek is for tenants whose turn it is not

_LaneKey = tuple[float, str]


class OfflinePool:
    """Waiting offline requests in the order to try.

    Requests lie in lanes, one for each tenant and deadline, deadlines rounded down to multiples of
    ``urgent_s``. Lanes due within ``urgent_s`` come first, the earliest first: a request is urgent
    from one to two ``urgent_s`` before its deadline. The other lanes go by tenant, the least served
    first (see ``VirtualTokenCounter``, with ``quantum_tokens``), and within a tenant by deadline.

    Within a lane, each place of the order is given to the head of the prefix tree with probability
    ``utility_ratio`` (0 to 1), else to the request that waits longest, if it has waited at least
    ``stale_s``. The draws are made ahead and used up by admissions, so asking changes nothing.
    ``rng`` gives numbers in [0, 1); it is needed for a ratio strictly between 0 and 1.

    Raises:
        ConfigError: a value outside its range, or no ``rng`` where it is needed.

    Source: HyGen Algorithm 3. Deadlines, tenants and ``stale_s`` are ours; 0 gives HyGen's.
    """

    def __init__(
        self,
        *,
        utility_ratio: float = 1.0,
        rng: Callable[[], float] | None = None,
        stale_s: float = 0.0,
        urgent_s: float = DEFAULT_URGENT_S,
        quantum_tokens: float = DEFAULT_QUANTUM_TOKENS,
    ) -> None:
        _check(utility_ratio=utility_ratio, rng=rng, stale_s=stale_s, urgent_s=urgent_s)
        self._ratio = utility_ratio
        self._rng = rng
        self._stale_s = stale_s
        self._urgent_s = urgent_s
        self._draws: deque[bool] = deque(self._draw() for _ in range(_DRAWS))  # True: the tree
        self._places: dict[RequestId, tuple[Request, Lane, Age]] = {}
        self._lanes: dict[_LaneKey, Lane] = {}
        self._by_due: SortedQueue[_LaneKey] = SortedQueue()
        self._of_tenant: dict[str, SortedQueue[tuple[float]]] = {}
        self._fairness = VirtualTokenCounter(quantum_tokens=quantum_tokens)
        self._added = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._places

    def add(self, request: Request) -> None:
        """A request waits from now on.

        Raises:
            DuplicateRequestError: its id waits already.
        """
        if request.id in self._places:
            raise DuplicateRequestError(f"request {request.id} waits in the pool already")
        self._added += 1
        age = (request.arrival_s, self._added)
        lane = self._lane(request)
        lane.add(request, age)
        self._places[request.id] = (request, lane, age)

    def remove(self, request_id: RequestId) -> None:
        """It waits no more: it ended before it ran.

        Raises:
            UnknownRequestError: it does not wait here.
        """
        self._leave(request_id, runs=False)

    def taken(self, request_id: RequestId) -> None:
        """It was admitted: its tenant is charged and its prefix goes on first.

        Raises:
            UnknownRequestError: it does not wait here.
        """
        request = self._leave(request_id, runs=True)
        output = request.expected_output_tokens
        self._fairness.charge(
            request.tenant,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.max_output_tokens if output is None else output,
        )
        self._draws.popleft()
        self._draws.append(self._draw())

    def candidates(self, limit: int, now_s: float) -> Sequence[Request]:
        """The first ``limit`` requests in the order to try; nothing changes.

        While several tenants wait, the last quarter is left to those whose turn it is not, so that
        one tenant's requests that cannot run yet do not hide everybody else's.
        """
        found: list[Request] = []
        horizon_s = now_s + self._urgent_s
        for key in self._by_due:
            if key[0] > horizon_s or len(found) >= limit:
                break
            self._extend(found, self._lanes[key], limit, now_s)
        room = limit - len(found)
        ranking = self._fairness.ranking()
        if room <= 0 or not ranking:
            return found
        own: list[Request] = []
        self._extend_tenant(own, ranking[0], room, now_s)
        others: list[Request] = []
        upto = max(room // _OTHERS_SHARE, room - len(own))
        for tenant in ranking[1:]:
            if len(others) >= upto:
                break
            self._extend_tenant(others, tenant, upto, now_s)
        return [*found, *own[: room - len(others)], *others]

    # -- parts ------------------------------------------------------------------------------

    def _draw(self) -> bool:
        if self._rng is None or self._ratio in {0.0, 1.0}:
            return self._ratio == 1.0
        return self._rng() < self._ratio

    def _lane(self, request: Request) -> Lane:
        """The request's lane, made if it is the first."""
        due_s = inf
        if request.deadline_s is not None:
            due_s = request.deadline_s // self._urgent_s * self._urgent_s
        key = (due_s, request.tenant)
        lane = self._lanes.get(key)
        if lane is None:
            lane = Lane(tenant=request.tenant, due_s=due_s, ages=self._ratio < 1.0)
            self._lanes[key] = lane
            self._by_due.add(key)
            if request.tenant not in self._of_tenant:
                self._of_tenant[request.tenant] = SortedQueue()
                self._fairness.join(request.tenant)
            self._of_tenant[request.tenant].add((due_s,))
        return lane

    def _leave(self, request_id: RequestId, *, runs: bool) -> Request:
        place = self._places.pop(request_id, None)
        if place is None:
            raise UnknownRequestError(f"request {request_id} does not wait in the pool")
        request, lane, age = place
        lane.remove(request_id, age, runs=runs)
        if not len(lane):
            key = (lane.due_s, lane.tenant)
            del self._lanes[key]
            self._by_due.remove(key)
            dues = self._of_tenant[lane.tenant]
            dues.remove((lane.due_s,))
            if not len(dues):
                del self._of_tenant[lane.tenant]
                self._fairness.leave(lane.tenant)
        return request

    def _extend_tenant(self, found: list[Request], tenant: str, upto: int, now_s: float) -> None:
        """Fill ``found`` up to ``upto`` from a tenant's lanes that are not urgent."""
        for (due_s,) in self._of_tenant[tenant]:
            if len(found) >= upto:
                return
            if due_s > now_s + self._urgent_s:
                self._extend(found, self._lanes[due_s, tenant], upto, now_s)

    def _extend(self, found: list[Request], lane: Lane, upto: int, now_s: float) -> None:
        """Fill ``found`` up to ``upto`` from one lane."""
        if self._ratio == 1.0:
            found.extend(islice(lane.tree, upto - len(found)))
            return
        by_age = lane.oldest(arrived_before_s=now_s - self._stale_s)
        by_prefix = iter(lane.tree)
        seen: set[RequestId] = set()
        while len(found) < upto:
            # Beyond the draws made ahead the order matters little: they are used again.
            from_tree = self._draws[len(found) % _DRAWS]
            request = None if from_tree else _next_unseen(by_age, seen)
            if request is None:
                request = _next_unseen(by_prefix, seen)
            if request is None:
                return
            seen.add(request.id)
            found.append(request)


def _next_unseen(requests: Iterator[Request], seen: set[RequestId]) -> Request | None:
    for request in requests:
        if request.id not in seen:
            return request
    return None


def _check(
    *, utility_ratio: float, rng: Callable[[], float] | None, stale_s: float, urgent_s: float
) -> None:
    if not 0.0 <= utility_ratio <= 1.0:
        raise ConfigError(f"utility_ratio is {utility_ratio}: give 0 to 1")
    if rng is None and 0.0 < utility_ratio < 1.0:
        raise ConfigError(f"utility_ratio is {utility_ratio}: give an rng, or a ratio of 0 or 1")
    if not urgent_s > 0.0:
        raise ConfigError(f"urgent_s is {urgent_s}: give seconds above 0")
    if not stale_s >= 0.0:
        raise ConfigError(f"stale_s is {stale_s}: give seconds, 0 or more")
