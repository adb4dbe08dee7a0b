"""Offline orders by one key: arrival, or deadline. They know nothing of prefixes or tenants."""

from collections.abc import Callable, Sequence
from itertools import islice
from math import inf

from weir_engine.errors import DuplicateRequestError, UnknownRequestError
from weir_engine.ids import RequestId
from weir_engine.pool.sorted_queue import SortedQueue
from weir_engine.request import Request

_Key = tuple[float, float, int]


class _KeyedOrder:
    """Requests sorted by a key that is fixed when they are added; ties in order of adding."""

    def __init__(self, key: Callable[[Request], tuple[float, float]]) -> None:
        self._key = key
        self._keys: dict[RequestId, _Key] = {}
        self._requests: dict[int, Request] = {}
        self._queue: SortedQueue[_Key] = SortedQueue()
        self._added = 0

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, request: Request) -> None:
        """A request waits from now on.

        Raises:
            DuplicateRequestError: its id waits already.
        """
        if request.id in self._keys:
            raise DuplicateRequestError(f"request {request.id} waits in the pool already")
        self._added += 1
        key = (*self._key(request), self._added)
        self._keys[request.id] = key
        self._requests[self._added] = request
        self._queue.add(key)

    def remove(self, request_id: RequestId) -> None:
        """It waits no more: it ended before it ran.

        Raises:
            UnknownRequestError: it does not wait here.
        """
        key = self._keys.pop(request_id, None)
        if key is None:
            raise UnknownRequestError(f"request {request_id} does not wait in the pool")
        self._queue.remove(key)
        del self._requests[key[2]]

    def taken(self, request_id: RequestId) -> None:
        """It was admitted.

        Raises:
            UnknownRequestError: it does not wait here.
        """
        self.remove(request_id)

    def candidates(self, limit: int, now_s: float) -> Sequence[Request]:  # noqa: ARG002
        """The first ``limit`` in order; nothing changes."""
        return [self._requests[key[2]] for key in islice(self._queue, limit)]


class FcfsOrder(_KeyedOrder):
    """By arrival. Source: HyGen §4.3, the default policy."""

    def __init__(self) -> None:
        super().__init__(lambda request: (request.arrival_s, 0.0))


class EdfOrder(_KeyedOrder):
    """By deadline, then arrival; without a deadline last. Source: HyGen §4.3, Deadline-First."""

    def __init__(self) -> None:
        super().__init__(_by_deadline)


def _by_deadline(request: Request) -> tuple[float, float]:
    return (inf if request.deadline_s is None else request.deadline_s, request.arrival_s)
