"""Steps between the moment they are scheduled and the moment their output is processed.

Measures how long each took. Several may be in flight; they end in the order they were scheduled.
"""

from dataclasses import dataclass
from typing import Any, Final

from weir_engine.ids import RequestId
from weir_engine.sched.plan import StepPlan

AT_ONCE: Final = 0.25
"""Output that comes within this share of the next step's launch was there before its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTiming:
    """When a step ran on the device, as seen from the scheduler, in seconds of its clock.

    ``ended_s`` is when its tokens were there, ``started_s`` as much earlier as it took. ``timed``
    is False when that says nothing about the step.
    """

    started_s: float
    ended_s: float
    timed: bool


@dataclass(slots=True, kw_only=True)
class _InFlight:
    output: Any  # keeps the object alive, so that its id stays its own
    plan: StepPlan | None
    scheduled_s: float
    exact: bool
    launched_s: float | None = None


class StepLog:
    """Steps in flight.

    A step starts when it was scheduled or when the one before it ended, whichever is later. With
    ``asynchronous`` scheduling a step that was queued behind nothing is not timed: what was
    measured includes the engine's start from idle. The first ``warm_up`` steps are not timed.

    An asynchronous engine launches a step before it looks for the output of the one before, and a
    launch can take longer than that one computed: prompts whose kernels are launched one by one.
    Output that is there at once then came at some time during the launch, so the launch counts for
    the step that it launches: the one before ends where that was scheduled, and is timed only if
    its own launch was counted for it likewise.
    """

    def __init__(self, *, asynchronous: bool, warm_up: int = 1) -> None:
        self._asynchronous = asynchronous
        self._cold = warm_up
        self._in_flight: dict[int, _InFlight] = {}
        self._computing = 0
        self._ended_s = 0.0
        self._launching = False  # the next step counts from its launch

    @property
    def computing(self) -> int:
        """Steps in flight that compute something."""
        return self._computing

    def in_flight(self, request_id: RequestId) -> int:
        """Steps in flight that compute something of the request."""
        plans = [step.plan for step in self._in_flight.values() if step.plan is not None]
        return sum(any(work.request_id == request_id for work in plan.work) for plan in plans)

    def sent(
        self, output: object, plan: StepPlan | None, *, scheduled_s: float, exact: bool
    ) -> None:
        """A step was sent; ``exact`` when the engine does precisely what ``plan.shape`` says.

        ``plan`` is None for a step that computes nothing.
        """
        self._in_flight[id(output)] = _InFlight(
            output=output,
            plan=plan,
            scheduled_s=scheduled_s,
            exact=exact and not (self._asynchronous and self._computing == 0),
        )
        self._computing += plan is not None

    def launched(self, output: object, now_s: float) -> None:
        """The device has the work of the step with that output."""
        step = self._in_flight.get(id(output))
        if step is not None:
            step.launched_s = now_s

    def ended(self, output: object, now_s: float) -> tuple[StepPlan | None, StepTiming]:
        """The step with that output has ended; its plan and its times. Unknown ones have none."""
        step = self._in_flight.pop(id(output), None)
        if step is None or step.plan is None:
            return None, StepTiming(started_s=now_s, ended_s=now_s, timed=False)
        started_s = max(step.scheduled_s, self._ended_s)
        self._computing -= 1
        timed = step.exact and self._cold == 0
        self._cold = max(self._cold - 1, 0)
        launching_s = self._launched_meanwhile(now_s)
        if launching_s is None:
            self._ended_s, self._launching = now_s, False
            return step.plan, StepTiming(started_s=started_s, ended_s=now_s, timed=timed)
        took_s = max(launching_s - started_s, 0.0)
        timed = timed and self._launching
        self._ended_s, self._launching = launching_s, True
        return step.plan, StepTiming(started_s=now_s - took_s, ended_s=now_s, timed=timed)

    def _launched_meanwhile(self, now_s: float) -> float | None:
        """When the launch began that the output which is there now has waited for; None: none."""
        following = next(iter(self._in_flight.values()), None)
        if not self._asynchronous or following is None or following.launched_s is None:
            return None
        launch_s = following.launched_s - following.scheduled_s
        waited_s = now_s - following.launched_s
        return following.scheduled_s if waited_s < AT_ONCE * launch_s else None
