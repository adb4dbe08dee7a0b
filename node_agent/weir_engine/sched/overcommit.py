"""Whether offline admissions may count on others to end: while blocks are short and time is not."""

from typing import Final

from weir_engine.sched.plan import StepPlan
from weir_engine.sched.state import SchedulerState
from weir_engine.sched.step_kind import StepKind

# A step that is predicted to take this share of its limit had no time left.
_FULL: Final = 0.9
# Of some thousand steps: half a minute on an engine of 40 ms a step.
_WEIGHT: Final = 1 / 1024
# Blocks are short where more than this share of the steps had room for more tokens.
_LEAST_IDLE: Final = 0.15


class Overcommit:
    """Measures how often offline work leaves a step unfilled though more of it waits.

    Offline requests end one after the other, so together they never hold all that each holds at its
    end. An admission that counts on it (``GrowthToPeak``) fills the blocks better, and is wrong at
    times: then a request gives way and is computed again. Where steps have room for that, blocks
    are what offline work lacks; where time or tokens end a step, more is lost than gained.

    Source: Weir.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._idle_share = 0.0  # nothing is known: nobody is counted on

    @property
    def allowed(self) -> bool:
        """True while enough of the steps had room for more."""
        return self._idle_share > _LEAST_IDLE

    def on_begin(self, plan: StepPlan) -> None:
        """Learns from a plan that is about to take effect."""
        state, policy = self._state, self._state.policy
        if not (state.running_offline or state.offline_waiting):
            return
        if not (policy.alive(plan.now_s) and policy.offline_seq_slots and policy.offline_kv_blocks):
            return  # offline work was not asked for: that says nothing of blocks
        if plan.kind is StepKind.DECODE and state.decodes_wait:
            return  # nor does a step that prompts had to stay out of
        idle = (
            state.offline_waiting > 0
            and plan.shape.tokens < state.shape.max_batched_tokens
            and not (plan.limit_s is not None and plan.predicted_s >= _FULL * plan.limit_s)
        )
        self._idle_share += (idle - self._idle_share) * _WEIGHT
