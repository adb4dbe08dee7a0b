"""One tenant's waiting requests of about one deadline: by shared prefix, and by age.

Which lane is asked, and which of its two orders, is decided in ``offline_pool``.
"""

from collections.abc import Iterator
from math import inf

from weir_engine.ids import RequestId
from weir_engine.pool.prefix_tree import PrefixTree
from weir_engine.pool.sorted_queue import SortedQueue
from weir_engine.request import Request

Age = tuple[float, int]
"""Arrival in seconds, then the order of adding."""


class Lane:
    """A prefix tree and, where wanted, the same requests by age.

    ``due_s`` is at or before the deadline of each request in it; infinite without deadlines.
    ``ages`` False saves the second structure.

    Source: HyGen Algorithm 3 (T_p and T_f), which "sync up by deleting the selected request".
    """

    __slots__ = ("_ages", "_by_age", "due_s", "tenant", "tree")

    def __init__(self, *, tenant: str, due_s: float, ages: bool) -> None:
        self.tenant = tenant
        self.due_s = due_s
        self.tree = PrefixTree()
        self._by_age: SortedQueue[Age] | None = SortedQueue() if ages else None
        self._ages: dict[Age, Request] = {}

    def __len__(self) -> int:
        return len(self.tree)

    def add(self, request: Request, age: Age) -> None:
        """Put a request in."""
        self.tree.add(request)
        if self._by_age is not None:
            self._by_age.add(age)
            self._ages[age] = request

    def remove(self, request_id: RequestId, age: Age, *, runs: bool) -> None:
        """Take a request out of both orders; ``runs``: it was admitted, so its prefix started."""
        if runs:
            self.tree.take(request_id)
        else:
            self.tree.remove(request_id)
        if self._by_age is not None:
            self._by_age.remove(age)
            del self._ages[age]

    def oldest(self, arrived_before_s: float = inf) -> Iterator[Request]:
        """Requests by age, those that arrived no later than that."""
        for age in () if self._by_age is None else self._by_age:
            if age[0] > arrived_before_s:
                return
            yield self._ages[age]
