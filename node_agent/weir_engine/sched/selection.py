"""The order in which waiting offline requests are tried.

The pool holds them; the step takes them.
"""

from collections.abc import Sequence
from typing import Protocol

from weir_engine.ids import RequestId
from weir_engine.request import Request


class OfflineOrder(Protocol):
    """Waiting offline requests in the order to try, best first."""

    def add(self, request: Request) -> None:
        """A request waits from now on."""
        ...

    def remove(self, request_id: RequestId) -> None:
        """It waits no more: it ended before it ran."""
        ...

    def taken(self, request_id: RequestId) -> None:
        """It was admitted."""
        ...

    def candidates(self, limit: int, now_s: float) -> Sequence[Request]:
        """The first ``limit`` in order; nothing changes."""
        ...

    def __len__(self) -> int:
        """Requests that wait."""
        ...
