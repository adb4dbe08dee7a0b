"""The order in which online requests are served within a step."""

from collections.abc import Iterable
from typing import Protocol

from weir_engine.request import Request


class OnlineOrder(Protocol):
    """Orders online requests that still prefill; decoders all run."""

    def order(self, requests: Iterable[Request], now_s: float) -> list[Request]:
        """The requests, the one to serve first at the front."""
        ...


class Fcfs:
    """First come, first served. Source: HyGen §4.1 (default policy)."""

    def order(self, requests: Iterable[Request], now_s: float) -> list[Request]:  # noqa: ARG002
        """By arrival."""
        return sorted(requests, key=lambda request: (request.arrival_s, request.id))
