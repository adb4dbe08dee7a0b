"""The step after one of online decodes alone, where nothing has changed: the same once more.

Between an arrival and the next most steps of an engine with few requests are like that. Planning
each anew gives the same, and fetches all the code of a plan into the processor's caches, out of
which the model's own step has just pushed it: that takes several times what there is to compute.
"""

from collections.abc import Callable
from typing import NamedTuple

from weir_engine.latency.features import StepShape
from weir_engine.latency.models import LatencyModel
from weir_engine.request import Request
from weir_engine.sched.account import OnlineLoad, StepLimit
from weir_engine.sched.bookkeeping import Bookkeeping
from weir_engine.sched.pace import Pace, earliest
from weir_engine.sched.plan import StepPlan
from weir_engine.sched.state import SchedulerState
from weir_engine.sched.step_kind import StepKind


class _Last(NamedTuple):
    """The step that was sent last, and whose tokens it gives; ``changes`` of the state then."""

    plan: StepPlan
    requests: tuple[Request, ...]
    changes: int
    repeats: int  # so many more steps until one of the requests has all its tokens


class SteadyDecodes:
    """Repeats a plan while it would be made again; what is sent in between is told it.

    The plan is the one that both phases would make, with all that they tell and ask. ``pace`` is
    the tightest objective on TPOT (None without any).

    Source: Weir.
    """

    def __init__(
        self, state: SchedulerState, *, model: LatencyModel, books: Bookkeeping, pace: Pace | None
    ) -> None:
        self._state = state
        self._model = model
        self._books = books
        self._pace = pace
        self._last: _Last | None = None

    def began(self, plan: StepPlan) -> None:
        """A plan was sent, and has taken effect."""
        last, changes = self._last, self._state.changes
        if last is not None and plan.work is last.plan.work and changes == last.changes:
            self._last = _Last(plan, last.requests, changes, last.repeats - 1)
            return
        self._last = self._first(plan) if self._is_alone(plan) else None

    def again(
        self, now_s: float, busy_s: float, limit_of: Callable[[OnlineLoad], StepLimit]
    ) -> StepPlan | None:
        """The plan of the next step; None where it is to be made anew.

        ``limit_of`` books the load of a step that no offline work is in, and says its limit.
        """
        state, last = self._state, self._last
        if last is None or last.repeats < 1 or state.changes != last.changes:
            return None
        decodes = len(last.requests)
        if state.waiting_online or state.kv.free_blocks < decodes:
            return None
        if not (state.only_online_runs or self._books.is_quiet_beside(decodes)):
            return None
        before = last.plan.shape
        shape = StepShape(
            0, 0.0, 0, decodes, before.decode_context + decodes, before.decode_longest + 1
        )
        load = self._load(last.requests, shape, now_s, busy_s)
        limit = limit_of(load)
        return last.plan._replace(
            step=state.step + 1,
            now_s=now_s,
            shape=shape,
            online_shape=shape,
            predicted_s=load.base_s,
            limit_s=limit.seconds,
            limit_reason=limit.reason,
        )

    def _is_alone(self, plan: StepPlan) -> bool:
        """Whether the plan has one token each of all online requests that run, and no more."""
        running = len(self._state.running_online)
        same = len(plan.work) == plan.shape.decode_requests == running
        if not same or plan.shape != plan.online_shape or plan.kind is not StepKind.HYBRID:
            return False
        return not (plan.preempt or plan.refused or plan.recall or plan.restore)

    def _first(self, plan: StepPlan) -> _Last | None:
        requests = tuple(self._state.running_online.values())
        left = [request.max_output_tokens - request.output_tokens for request in requests]
        return _Last(plan, requests, self._state.changes, min(left)) if requests else None

    def _load(
        self, requests: tuple[Request, ...], shape: StepShape, now_s: float, busy_s: float
    ) -> OnlineLoad:
        earliest_s, cumulative_s = earliest(requests, self._pace, now_s, busy_s)
        return OnlineLoad(
            now_s=now_s,
            busy_s=busy_s,
            decoders=len(requests),
            earliest_token_s=earliest_s,
            earliest_cumulative_s=cumulative_s,
            base_s=self._model.predict(shape),
            idle_step_s=self._model.fixed_s,
            surcharge_s=self._books.surcharge.seconds,
        )
