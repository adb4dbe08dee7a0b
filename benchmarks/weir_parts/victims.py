"""Other choices of whom to preempt, to hold ``Displaceable`` against."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import override

from weir_engine.ids import RequestId
from weir_engine.request import Request
from weir_engine.sched.preemption import Displaceable

_BLOCK_TOKENS = 16


class ShortestTailFirst(Displaceable):
    """Lost are only tokens beyond the last full block."""

    @override
    def in_turn(self, releasable: Mapping[RequestId, int]) -> list[Request]:
        def loss(request: Request) -> tuple[float, float]:
            full = min(len(request.block_hashes), request.computed_tokens // _BLOCK_TOKENS)
            tail = request.computed_tokens - full * _BLOCK_TOKENS
            return tail / max(releasable[request.id], 1), -request.arrival_s

        return sorted(self.running, key=loss)


class LatestFirst(Displaceable):
    """The last arrivals, as vLLM does."""

    @override
    def in_turn(self, releasable: Mapping[RequestId, int]) -> list[Request]:
        return sorted(self.running, key=lambda r: (r.arrival_s, r.id), reverse=True)
