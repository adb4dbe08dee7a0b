"""The overflow seat with a CPU lane: who decodes there, and what a step takes along from it."""

from weir_engine.config import Policy
from weir_engine.errors import ConfigError
from weir_engine.latency.models import LatencyModel
from weir_engine.sched.cpu_lane import CpuLaneView
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.offline_decode import OfflineDecodeControl
from weir_engine.sched.piggyback import DenseModel, Piggyback, PiggybackControl
from weir_engine.sched.state import SchedulerState

NO_PIGGYBACK = Piggyback((), 0.0)


class CpuOverflow:
    """Attention piggybacking: the decode control, then the piggyback control.

    Raises:
        ConfigError: the latency model does not know its dense modules apart.

    Source: OmniServe §3.2, §3.3.
    """

    def __init__(self, state: SchedulerState, lane: CpuLaneView, model: LatencyModel) -> None:
        if not isinstance(model, DenseModel):
            raise ConfigError("a CPU lane needs latency.model 'modulewise', which has dense_s")
        self._model = model
        self._decodes = OfflineDecodeControl(state, lane, model)
        self._piggyback = PiggybackControl(lane, model)

    def reserve_s(self, draft: StepDraft, limit_s: float) -> float:
        """Seconds of the step to keep from offline work on the GPU."""
        return self._piggyback.reserve_s(draft.shape.tokens, limit_s)

    def fill(
        self, draft: StepDraft, policy: Policy, *, base_s: float, reserve_s: float, limit_s: float
    ) -> Piggyback:
        """Moves requests in the draft; says which results the step takes within ``limit_s``."""
        self._decodes.fill(draft, policy, base_s, limit_s - reserve_s)
        shape = draft.shape
        spent_s = self._model.fixed_s if shape.is_empty else self._model.predict(shape)
        return self._piggyback.admit(
            shape.tokens,
            limit_s - spent_s,
            leaving=len(draft.recall),
            # As on the GPU: where online has nothing to do a step that may run does something.
            must_move=base_s == 0 < limit_s and not draft.work,
        )
