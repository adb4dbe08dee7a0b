"""Which online prompts share a step, where first tokens count.

Source: Weir (decisions 6, 42 and 43).
"""

from weir_engine.latency.models import LatencyModel
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.state import SchedulerState

# Once a prompt ends in a step, another one may join only while the step is shorter than this many
# fixed costs: the first token would wait for the other's prefill, which costs more than a step.
# Where only a tail of TTFT counts, the decodes are part of what one more step costs: the last
# prompt of a burst waits for each step.
_JOIN_STEPS = 3.0
# It joins all the same where the step that this saves is worth more to those who wait: the one that
# ends loses this share of a full step.
_LOST_SHARE = 0.2


class PromptJoining:
    """Keeps other prompts out of a long step in which one ends, unless too many wait for that.

    ``staggers`` False: it keeps nobody out. Long is more than some fixed costs, or, with
    ``beside_decodes``, more than some steps of its decodes alone.
    """

    def __init__(
        self,
        state: SchedulerState,
        model: LatencyModel,
        *,
        staggers: bool = False,
        beside_decodes: bool = False,
    ) -> None:
        self._state = state
        self._model = model
        self.staggers = staggers
        self._beside_decodes = beside_decodes

    def keeps_out(self, draft: StepDraft) -> bool:
        """True when a prompt ends in the step and another one would make it wait."""
        if not (self.staggers and draft.ends_prompt) or draft.prompts_share:
            return False
        one_more_s = self._model.fixed_s + draft.waiting_s
        if self._beside_decodes and draft.decode_requests:
            one_more_s = self._model.predict(draft.decode_shape)
        if self._model.predict(draft.shape) <= _JOIN_STEPS * one_more_s:
            return False
        return not self._all_gain(draft)

    def _all_gain(self, draft: StepDraft) -> bool:
        """True while so many prompts wait that a step saved is worth more than who ends now loses.

        A step with prompts costs each of them what its decodes take, in it or before the next one.
        """
        model, decodes = self._model, draft.decode_shape
        begun = [r for r in self._state.running_online.values() if not r.output_tokens]
        behind = len(begun) + len(self._state.waiting_online) - draft.prefill_requests
        alone_s = model.fixed_s if decodes.is_empty else model.predict(decodes)
        saved_s = alone_s + draft.waiting_s + model.mixed_s(decodes)
        full = decodes.with_prefill(self._state.shape.max_batched_tokens, 0)
        return behind * saved_s >= _LOST_SHARE * model.predict(full)
