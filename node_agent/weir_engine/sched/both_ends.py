"""Offline work where an engine's KV blocks are filled from both ends (BROS §5).

Whom online takes fronts from, and who gets overwritten slots back. An engine with paged blocks has
none of this: every answer is then that nothing can be claimed and nothing is missing.
"""

from weir_engine.ids import RequestId
from weir_engine.kv.view import BothEndsView, KvView, Missing
from weir_engine.latency.swap import SwapModel
from weir_engine.request import Request
from weir_engine.sched.draft import StepDraft

_NOTHING_MISSING = Missing()


class BothEnds:
    """The two ends of the KV blocks of one engine, as a step is planned.

    Source: BROS §5.2.
    """

    def __init__(self, kv: KvView, swap: SwapModel) -> None:
        """``swap`` is what copying slots back takes."""
        self._view = kv if isinstance(kv, BothEndsView) else None
        self._swap = swap

    @property
    def there(self) -> bool:
        """Whether the engine has such blocks."""
        return self._view is not None

    def claimed(self, draft: StepDraft, blocks: int) -> frozenset[RequestId] | None:
        """Whose fronts online fills for so many blocks more than are free; None: no way.

        Those requests cannot be in the step. Once a request has given its blocks back in a step,
        which fronts are next is not known any more.
        """
        if blocks <= 0:
            return frozenset()
        if self._view is None or draft.preempted:
            return None
        return self._view.claims(blocks)

    def missing(self, request: Request) -> Missing:
        """What a running offline request lacks before it can be in a step."""
        return _NOTHING_MISSING if self._view is None else self._view.missing(request)

    def copies_within(self, slots: int, limit_s: float) -> bool:
        """Whether so many slots are back in time: they are copied while the step runs."""
        return self._swap.seconds(slots) <= limit_s
