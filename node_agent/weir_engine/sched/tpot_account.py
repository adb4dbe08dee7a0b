"""Accounts of the time per output token, cumulative from arrival or from the first token."""

from math import inf

from weir_engine.config import Slo
from weir_engine.latency.models import LatencyModel
from weir_engine.sched.account import OnlineLoad, QuietAccount, StepLimit, StepTimes
from weir_engine.sched.feedback import TailFeedback

_GUARD_QUANTILE = 0.9
# From the first token on no step takes more than this many TPOTs, whatever was saved: it is the
# mean of the gaps that counts, and long steps hold KV memory for longer.
_LONGEST_GAP = 1.05


class TailTpotAccount(QuietAccount):
    """A percentile of TPOT: each token is due a TPOT after the one before, from a start on.

    A request ahead of its schedule has slack for a long step; the one with least sets the limit.
    The first token's own time starts the schedule (see ``Pace``), so that what one step takes too
    long, by noise, the next ones make up for, and steps last one TPOT on average. With ``ttft_s``
    the first token is due at arrival plus that, and the others from there: Echo's objective.

    Source: Echo §5.1, Latency_i = TTFT + i * TPOT; the guard by residual quantile is Weir's.
    """

    def __init__(self, slo: Slo, model: LatencyModel, *, ttft_s: float | None = None) -> None:
        self._threshold_s = slo.threshold_s
        self._delay_s = 0.0
        self._ttft_s = 0.0 if ttft_s is None else ttft_s
        self._paced = ttft_s is None
        self._model = model
        self._feedback = TailFeedback(allowed=(1 - slo.quantile) / 2)

    @property
    def _tpot_s(self) -> float:
        return self._threshold_s - self._delay_s

    def _limit(self, load: OnlineLoad) -> float:
        if load.earliest_cumulative_s is None:
            return inf
        due_s = load.earliest_cumulative_s + self._ttft_s
        slack_s = max(due_s - load.now_s - load.busy_s, 0.0)
        if self._paced:
            slack_s = min(slack_s, _LONGEST_GAP * self._tpot_s)
        return self._model.within(slack_s, _GUARD_QUANTILE) * self._feedback.factor

    def prefill_limit(self, load: OnlineLoad) -> float:
        """Online prefill is chunked, but never below one TPOT: late is no reason to stop."""
        least_s = self._tpot_s
        if self._paced:  # it is what most steps last: at the median half of them would be late
            least_s = self._model.within(least_s, _GUARD_QUANTILE)
        return max(self._limit(load), least_s)

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """The least cumulative slack."""
        return StepLimit(seconds=self._limit(load), reason="tpot-tail")

    def on_lateness(self, late_s: float) -> None:
        """Feeds the tail."""
        self._feedback.observe(over=late_s > self._ttft_s)

    def on_step(self, times: StepTimes) -> None:  # noqa: ARG002
        """Closes the tokens of the step before."""
        self._feedback.end_step()

    def set_client_delay(self, delay_s: float) -> None:
        """Lowers the threshold, to no less than half; ``Pace`` takes the same off its gaps."""
        self._delay_s = min(max(delay_s, 0.0), self._threshold_s / 2)
