"""OmniServe's step budget: no step longer than one TPOT, none past a first token's deadline."""

from collections.abc import Sequence
from math import inf

from weir_engine.config import Metric, Slo
from weir_engine.errors import ConfigError
from weir_engine.latency.models import LatencyModel
from weir_engine.sched.account import Account, OnlineLoad, StepLimit

_GUARD_QUANTILE = 0.9


def planned_step_s(model: LatencyModel, tpot_s: float) -> float:
    """Predicted seconds of a step that stays within the TPOT objective, but for one in ten."""
    return model.within(tpot_s, _GUARD_QUANTILE)


class TpotBudget:
    """Online prefill fills a step up to the TPOT objective, by bisection; offline work after it.

    Offline work also leaves every online prompt its TTFT: the step ends before the first of them
    is due. What results of the CPU lane will take is kept free by the scheduler, which knows them.

    Raises:
        ConfigError: no TPOT objective.

    Source: OmniServe §3.3.4, §3.3.5; the bisection over tokens is the latency model's
    ``max_prefill_tokens``. Deviation: a step is planned to stay within the objective at a quantile
    of the measured residuals, not by its prediction alone, or half of the full steps would be late.
    """

    def __init__(self, slos: Sequence[Slo], model: LatencyModel) -> None:
        tpot_s = min((s.threshold_s for s in slos if s.metric is Metric.TPOT), default=None)
        if tpot_s is None:
            raise ConfigError("slos lack tpot: OmniServe's budget is one")
        self._tpot_s = tpot_s
        self._ttft_s = min((s.threshold_s for s in slos if s.metric is Metric.TTFT), default=inf)
        self._model = model

    def prefill_limit(self, load: OnlineLoad) -> float:  # noqa: ARG002
        """The TPOT objective, whoever decodes."""
        return planned_step_s(self._model, self._tpot_s)

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """The TPOT objective, or what is left to the first online prompt."""
        limit_s = planned_step_s(self._model, self._tpot_s)
        if load.earliest_arrival_s is not None:
            slack_s = load.earliest_arrival_s + self._ttft_s - load.now_s
            if slack_s < limit_s:
                return StepLimit(seconds=max(slack_s, 0.0), reason="ttft-prefill")
        return StepLimit(seconds=limit_s, reason="tpot")

    @property
    def accounts(self) -> Sequence[Account]:
        """None: it does not learn."""
        return ()
