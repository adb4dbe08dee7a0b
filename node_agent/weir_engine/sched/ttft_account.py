"""Accounts of the time to first token: a virtual online request is always about to arrive."""

from bisect import insort
from collections import deque

from weir_engine.config import Slo
from weir_engine.sched.account import OnlineLoad, QuietAccount, StepLimit, StepTimes
from weir_engine.sched.feedback import MeanFeedback, TailFeedback
from weir_engine.sched.prompt_queue import beside_prompts_s, memory_limit_s

# Before anything was measured, offline work may cost this share of the threshold.
_FIRST_SHARE = 0.05
# The mean account spends over this many coming requests, or this share of those seen.
_HORIZON_REQUESTS = 8.0
_HORIZON_SHARE = 0.15
# Never plan to spend more than this share of the threshold on waiting for offline steps.
_MOST_SHARE = 0.4
# Share of a known tolerance that is spent on the wait for steps in flight; the rest is for what
# offline work costs beside it (caches, more overlap of online requests).
_TOLERANCE_SHARE = 0.55
# A step shorter than this many fixed costs wastes more than it computes.
_SHORTEST_STEPS = 2.0
_TAIL_WINDOW = 400
_SHARE_OF_TAIL = 0.5
# The mean account looks back over about this many requests.
_SAMPLES = 200
# Before anything was measured, online traffic alone is taken to leave this share of the threshold,
# with the weight of this many requests.
_FIRST_TOLERANCE = 0.1
_FIRST_REQUESTS = 8


class MeanTtftAccount(QuietAccount):
    """A mean of TTFT: the expected wait for the step in flight is charged as it accrues.

    An arrival at a random moment waits for the rest of the step in flight, so a step of S seconds
    in which the online part alone would have taken S0 costs (S^2 - S0^2) / 2. The affordable mean
    wait w is a share of the tolerance, plus what the bank (sum of that share - delay caused by
    offline work) spreads over the coming requests. The best length at that price is 2w; below twice
    the fixed cost c0 it is 2 c0, taken only when enough has accrued. With an online prefill
    present, offline work waits. The tolerance is what the SLO leaves over the latency of online
    traffic alone: over its reference, else over the measured mean less the delay that offline work
    caused. So neither a cold start nor a burst of online requests earns or costs anything.

    Source: design, "TTFT SLO: a virtual online request is always present"; the length follows from
    maximising (1 - c0/S) at mean residual S/2 (Poisson arrivals see time averages).
    """

    def __init__(self, slo: Slo) -> None:
        self._threshold_s = slo.threshold_s
        self._known_tolerance_s = slo.tolerance_s
        self._feedback = MeanFeedback(threshold_s=slo.threshold_s, samples=_SAMPLES)
        self._delay_s = 0.0
        self._bank_s = 0.0
        self._seen = 0
        self._alone_s = (1 - _FIRST_TOLERANCE) * slo.threshold_s
        self._accrued_s2 = 0.0
        self._last_s: float | None = None

    @property
    def tolerance_s(self) -> float:
        """Mean latency that offline work may add; 0 where online traffic alone is too slow."""
        if self._known_tolerance_s is not None:
            return self._known_tolerance_s
        return max(0.0, self._threshold_s - self._delay_s - self._alone_s)

    @property
    def _share_s(self) -> float:
        tolerance_s = self.tolerance_s
        return _TOLERANCE_SHARE * tolerance_s * self._feedback.factor(tolerance_s)

    @property
    def wait_s(self) -> float:
        """Mean wait behind offline steps that a coming request can afford."""
        horizon = max(_HORIZON_REQUESTS, _HORIZON_SHARE * self._seen)
        wait_s = self._share_s + self._bank_s / horizon
        return min(_MOST_SHARE * self._threshold_s, max(0.0, wait_s))

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """Twice the affordable wait, or twice the fixed cost in turns."""
        if load.prefills:
            return StepLimit(seconds=load.base_s, reason="ttft-prefill")
        wait_s = self.wait_s
        length_s = max(2 * wait_s, _SHORTEST_STEPS * load.idle_step_s)
        elapsed_s = 0.0 if self._last_s is None else max(0.0, load.now_s - self._last_s)
        accrued_s2 = self._accrued_s2 + wait_s * elapsed_s
        if accrued_s2 >= 0:
            return StepLimit(seconds=length_s, reason="ttft-mean")
        idle_s = -accrued_s2 / wait_s if wait_s > 0 else None
        return StepLimit(seconds=load.base_s, reason="ttft-mean", idle_s=idle_s)

    def on_step(self, times: StepTimes) -> None:
        """Charges the step's residual and accrues the time that passed."""
        wait_s = self.wait_s
        if self._last_s is not None:
            self._accrued_s2 += wait_s * max(0.0, times.ended_s - self._last_s)
        self._last_s = times.ended_s
        if times.offline:
            self._accrued_s2 -= max(0.0, times.duration_s**2 - times.base_s**2) / 2
        # Credit of idle times is not hoarded: it would come out as one long step.
        self._accrued_s2 = min(self._accrued_s2, wait_s * max(wait_s, 0.02))

    def on_first_token(self, ttft_s: float, offline_delay_s: float) -> None:
        """Banks the difference of the delay to the share of the tolerance."""
        # One outlier must not hide what the others leave: it counts for twice the threshold.
        alone_s = min(max(ttft_s - offline_delay_s, 0.0), 2 * self._threshold_s)
        self._seen += 1
        weight = 1 / min(self._seen + _FIRST_REQUESTS, _SAMPLES)
        self._alone_s += (alone_s - self._alone_s) * weight
        self._feedback.observe(ttft_s + self._delay_s, beside_offline=offline_delay_s > 0)
        cap_s = 100 * self._threshold_s
        bank_s = self._bank_s + self._share_s - offline_delay_s
        self._bank_s = min(cap_s, max(-cap_s, bank_s))

    def set_client_delay(self, delay_s: float) -> None:
        """Lowers the threshold, to no less than half."""
        self._delay_s = min(max(delay_s, 0.0), self._threshold_s / 2)


class TailTtftAccount(QuietAccount):
    """A percentile of TTFT: a step is no longer than what the tail request can still wait.

    Tail requests come in bursts, where offline work already waits; what is left of its share is
    the step in flight at the start of the burst. So the cap is the threshold less the measured
    tail of TTFT without the offline-caused delay (or the reference where it is known), scaled by
    feedback on the measured tail. All of that may be planned for: the burst starts somewhere within
    the step, and waits for half of it on average. Beside prompts that have time to spare offline
    work gets a share of that, within the same cap: the first of them must not have waited, and all
    of them not take, so long that little is left.

    Source: design, "TTFT SLO ... capped (percentile)".
    """

    def __init__(self, slo: Slo) -> None:
        self._threshold_s = slo.threshold_s
        self._delay_s = 0.0
        self._quantile = slo.quantile
        self._tolerance_s = slo.tolerance_s
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._feedback = TailFeedback(allowed=(1 - slo.quantile) * _SHARE_OF_TAIL, low=0.1)

    def _headroom_s(self) -> float:
        if self._tolerance_s is not None:
            return self._tolerance_s
        threshold_s = self._threshold_s - self._delay_s
        if not self._sorted:
            return _FIRST_SHARE * threshold_s
        index = min(len(self._sorted) - 1, int(self._quantile * len(self._sorted)))
        return max(threshold_s - self._sorted[index], 0.0)

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """The headroom of the tail, never less than twice the fixed cost; less beside prompts."""
        cap_s = min(self._headroom_s(), _MOST_SHARE * self._threshold_s)
        if load.prefills:
            threshold_s = self._threshold_s - self._delay_s
            extra_s = beside_prompts_s(load, threshold_s=threshold_s, headroom_s=cap_s)
            limit_s = load.base_s + extra_s * self._feedback.factor
            return StepLimit(seconds=min(limit_s, memory_limit_s(load)), reason="ttft-prefill")
        shortest_s = _SHORTEST_STEPS * load.idle_step_s
        limit_s = max(cap_s * self._feedback.factor, shortest_s)
        return StepLimit(seconds=min(limit_s, memory_limit_s(load)), reason="ttft-tail")

    def on_first_token(self, ttft_s: float, offline_delay_s: float) -> None:
        """Feeds the tail, and the tail without offline work."""
        base_s = max(ttft_s - offline_delay_s, 0.0)
        if len(self._recent) == _TAIL_WINDOW:
            self._sorted.remove(self._recent.popleft())
        self._recent.append(base_s)
        insort(self._sorted, base_s)
        threshold_s = self._threshold_s - self._delay_s
        # A request that would have been late anyway says nothing about offline work.
        self._feedback.observe(over=base_s <= threshold_s < ttft_s)
        self._feedback.end_step()  # each request is a sample of its own

    def set_client_delay(self, delay_s: float) -> None:
        """Lowers the threshold, to no less than half."""
        self._delay_s = min(max(delay_s, 0.0), self._threshold_s / 2)
