"""Accounts of the time per output token, cumulative from arrival."""

from math import inf

from weir_engine.config import Slo
from weir_engine.latency.models import LatencyModel
from weir_engine.sched.account import OnlineLoad, QuietAccount, StepLimit, StepTimes
from weir_engine.sched.feedback import TailFeedback

_GUARD_QUANTILE = 0.9


class TailTpotAccount(QuietAccount):
    """A percentile of TPOT: token i is due at arrival + TTFT + i * TPOT.

    A request ahead of its schedule has slack for a long step; the one with least sets the limit.
    ``ttft_s`` is the TTFT objective, or 0 where there is none: then the first token's own time
    starts the schedule.

    Source: Echo §5.1, Latency_i = TTFT + i * TPOT; the guard by residual quantile is Weir's.
    """

    def __init__(self, slo: Slo, model: LatencyModel, *, ttft_s: float = 0.0) -> None:
        self._threshold_s = slo.threshold_s
        self._ttft_s = ttft_s
        self._model = model
        self._feedback = TailFeedback(allowed=(1 - slo.quantile) / 2)

    def _limit(self, load: OnlineLoad) -> float:
        if load.earliest_cumulative_s is None:
            return inf
        slack_s = load.earliest_cumulative_s + self._ttft_s - load.now_s
        guarded_s = self._model.within(max(slack_s, 0.0), _GUARD_QUANTILE)
        return guarded_s * self._feedback.factor

    def prefill_limit(self, load: OnlineLoad) -> float:
        """Online prefill is chunked, but never below one TPOT: late is no reason to stop."""
        return max(self._limit(load), self._threshold_s)

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """The least cumulative slack."""
        return StepLimit(seconds=self._limit(load), reason="tpot-tail")

    def on_lateness(self, late_s: float) -> None:
        """Feeds the tail."""
        self._feedback.observe(over=late_s > self._ttft_s)

    def on_step(self, times: StepTimes) -> None:  # noqa: ARG002
        """Closes the tokens of the step before."""
        self._feedback.end_step()
