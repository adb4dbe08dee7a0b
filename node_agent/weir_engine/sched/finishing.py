"""A draft becomes a step's plan: what it takes, who is left out, how long nothing may change."""

from math import inf

from weir_engine.ids import RequestId
from weir_engine.latency.features import StepShape
from weir_engine.latency.models import LatencyModel
from weir_engine.sched.account import OnlineLoad, StepLimit
from weir_engine.sched.cpu_overflow import NO_PIGGYBACK
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.piggyback import Piggyback
from weir_engine.sched.plan import StepPlan
from weir_engine.sched.state import SchedulerState


class Finishing:
    """The last act of planning. ``packs``: a packing filled the draft, not the two phases."""

    def __init__(self, state: SchedulerState, model: LatencyModel, *, packs: bool) -> None:
        self._state = state
        self._model = model
        self._packs = packs

    def plan(
        self,
        draft: StepDraft,
        load: OnlineLoad,
        limit: StepLimit,
        online_shape: StepShape,
        taken: Piggyback = NO_PIGGYBACK,
    ) -> StepPlan:
        """The plan; ``taken`` is what decodes on CPUs beside it."""
        state = self._state
        shape = draft.shape
        if shape is online_shape and not self._packs:
            predicted_s = load.base_s  # the same step
        else:
            predicted_s = 0.0 if shape.is_empty else self._model.predict(shape)
        if taken.counts:
            predicted_s = max(predicted_s, self._model.fixed_s) + taken.seconds
        waits = not (draft.work or taken.counts) and (
            state.offline_waiting or state.running_offline or state.on_cpu
        )
        return StepPlan(
            step=state.step + 1,
            now_s=load.now_s,
            work=tuple(draft.work),
            preempt=tuple(draft.preempt),
            held=self._held(draft),
            shape=shape,
            online_shape=online_shape,
            predicted_s=predicted_s,
            limit_s=limit.seconds,
            limit_reason=limit.reason,
            idle_s=self._idle_s(limit, load.now_s) if waits else None,
            refused=tuple(sorted(draft.refused)) if draft.refused else (),
            recall=tuple(draft.recall),
            restore=tuple(draft.restore),
            piggyback=taken.counts,
            piggyback_s=taken.seconds,
            kind=draft.kind,
        )

    def _idle_s(self, limit: StepLimit, now_s: float) -> float | None:
        """When an engine that has nothing to do should ask again although nothing arrives."""
        lane = self._state.lane
        next_s = None if lane is None else lane.next_s
        if next_s is None:
            return limit.idle_s
        return min(inf if limit.idle_s is None else limit.idle_s, max(next_s - now_s, 0.0))

    def _held(self, draft: StepDraft) -> tuple[RequestId, ...]:
        """Running requests that neither work in the step nor give way."""
        state = self._state
        if len(draft.work) - draft.admitted == len(state.running):  # the rule: all of them work
            return ()
        planned = {work.request_id for work in draft.work} | draft.preempted
        if state.lane is not None:
            planned.update(state.lane.landing)
        return tuple([name for name in state.running if name not in planned])
