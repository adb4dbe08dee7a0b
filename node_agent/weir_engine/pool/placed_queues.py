"""Waiting requests by the place in an order that they were taken from; at each first come first."""

from collections import OrderedDict
from collections.abc import Callable, ValuesView
from enum import StrEnum
from typing import Generic, TypeVar

from weir_engine.errors import DuplicateRequestError, UnknownRequestError
from weir_engine.ids import RequestId
from weir_engine.request import Request

Place = TypeVar("Place", bound=StrEnum)
Hint = TypeVar("Hint")


class PlacedQueues(Generic[Place, Hint]):
    """A queue for each of ``places``; a request waits in one, with the hint that it came with.

    ``hint`` is asked once a request; ``place`` says where a request with such a hint waits.
    """

    def __init__(
        self,
        places: type[Place],
        *,
        hint: Callable[[Request], Hint],
        place: Callable[[Hint], Place],
    ) -> None:
        self._hint = hint
        self._place_of = place
        # Ordered: a plain dict looks for its first entry past all that left before.
        self._queues: dict[Place, OrderedDict[RequestId, tuple[Request, Hint]]] = {
            place: OrderedDict() for place in places
        }
        self._place: dict[RequestId, Place] = {}

    def __len__(self) -> int:
        return len(self._place)

    def at(self, place: Place) -> ValuesView[tuple[Request, Hint]]:
        """Those of one place, in the order of adding."""
        return self._queues[place].values()

    def add(self, request: Request) -> None:
        """A request waits, behind those of its place.

        Raises:
            DuplicateRequestError: its id waits already.
        """
        if request.id in self._place:
            raise DuplicateRequestError(f"request {request.id} waits in the pool already")
        hint = self._hint(request)
        place = self._place_of(hint)
        self._place[request.id] = place
        self._queues[place][request.id] = (request, hint)

    def leave(self, request_id: RequestId) -> tuple[Request, Hint]:
        """It waits no more.

        Raises:
            UnknownRequestError: it does not wait here.
        """
        place = self._place.pop(request_id, None)
        if place is None:
            raise UnknownRequestError(f"request {request_id} does not wait in the pool")
        return self._queues[place].pop(request_id)
