"""What the scheduler tells seats that decide from what happened before. Events only, no decision.

A seat that wants them derives from ``StepListener``; asking a seat never changes it.
"""

from collections.abc import Mapping

from weir_engine.ids import RequestId
from weir_engine.request import Request
from weir_engine.sched.plan import StepOutcome, StepPlan


class StepListener:
    """Hears of arrivals, of plans that were sent and of ends; ignores what it does not name."""

    def on_add(self, request: Request) -> None:
        """A request arrived."""

    def on_begin(self, plan: StepPlan, requests: Mapping[RequestId, Request]) -> None:
        """The plan was sent to the engine; ``requests`` are those known, progress included."""

    def on_commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """The step of the plan ended; before its requests end."""

    def on_end(self, request: Request) -> None:
        """A request ended, finished or aborted; it was waiting or running until now."""
