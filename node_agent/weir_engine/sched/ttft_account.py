"""The account of a mean of the time to first token: an online request is always about to arrive."""

from math import exp, sqrt
from typing import ClassVar

from weir_engine.config import Slo
from weir_engine.sched.account import OnlineLoad, QuietAccount, StepLimit, StepTimes
from weir_engine.sched.feedback import SlackBank, TimeShare

# The mean account spends over this many coming requests, or this share of those it remembers.
_HORIZON_REQUESTS = 8.0
_HORIZON_SHARE = 0.15
_SAVINGS_SHARE = 0.3
# Never plan to spend more than this share of the threshold on waiting for offline steps.
MOST_SHARE = 0.4
# Share of the tolerance that is spent on the delay that offline work causes; the rest is for what
# it costs unseen (caches, more overlap of online requests). That is of the latency, not of the
# tolerance: of a narrow one no less than this share of the threshold is kept, which leaves at
# least ``_LEAST_OF_THRESHOLD``, or the share of one that has not even that.
_TOLERANCE_SHARE = 0.6
KEPT_OF_THRESHOLD = 0.05
_LEAST_OF_THRESHOLD = 0.03
# How much of the time has prompts is known over about this long.
_PROMPTS_S = 60.0
# A step shorter than this many fixed costs wastes more than it computes.
SHORTEST_STEPS = 2.0
# Share of the affordable wait that steps beside decoders plan with: the decoders that longer steps
# keep make the steps of prompts longer too.
_PLANNED_SHARE = 0.85
# The latency of online traffic alone is a mean over about this many requests.
_SAMPLES = 150
# What the mean account may save, and owe: the tolerance of so many requests.
_SAVED_REQUESTS = 8.0
_OWED_REQUESTS = 30.0
# What is above a new account's mean counts less and less with time, to a third after this long: the
# requests that would correct it may come in hours, or not before the next overload.
_MEMORY_S = 300.0
# Before anything was measured, online traffic alone is taken to leave this share of the threshold,
# with the weight of this many requests.
_FIRST_TOLERANCE = 0.1
_FIRST_REQUESTS = 8
# What was measured is forgotten when no online request got its first token for so long: without
# traffic nothing else would ever correct it.
FORGET_S = 60.0
# A request that comes after such a time can wait for this share of the threshold, even where
# online traffic alone leaves nothing of it: it meets no other request that offline work delays.
_QUIET_SHARE = 0.01
# A known reference weighs as much as this many measured requests.
_REFERENCE_REQUESTS = 30


class MeanTtftAccount(QuietAccount):
    """A mean of TTFT: the expected wait for the step in flight is charged as it accrues.

    An arrival at a random moment waits for the rest of the step in flight, so a step of S seconds
    in which the online part alone would have taken S0 costs (S^2 - S0^2) / 2. The affordable mean
    wait w is a share of the tolerance, plus what the bank (sum of that share - delay caused by
    offline work) spreads over the coming requests. The best length at that price is the one at
    which the step costs w a second, w + sqrt(w^2 + S0^2); below twice the fixed cost c0 it is 2 c0,
    taken only when enough has accrued, and so it is for any w below c0. With an online prefill
    present, offline work waits. Who is delayed delays those behind, until the prompts have caught
    up: where prompts take a share of the time, 1 / (1 - share) requests wait for it, so no more of
    the tolerance is spent than the part of the time that they leave. The tolerance is what the SLO
    leaves over the latency of online traffic alone: the measured mean less the delay that offline
    work caused, and no less than the reference where there is one. So a burst of online requests
    earns nothing, and on a machine that has become slower there is less to spend. What is measured
    fades with time where it is above a new account's: the mean is over minutes, however few
    requests come in them. A minute without online requests ends what keeps offline work out: debts,
    such a mean, a tolerance of nothing.

    Source: design, "TTFT SLO: a virtual online request is always present"; the length follows from
    maximising (1 - c0/S) at mean residual S/2 (Poisson arrivals see time averages).
    """

    _kept_of_threshold: ClassVar[float] = KEPT_OF_THRESHOLD

    def __init__(self, slo: Slo) -> None:
        self._delay_s = 0.0
        self._bank = SlackBank()
        self.set_objective(slo.threshold_s, slo.reference_s)
        self._seen = 0.0  # requests, of those that are remembered
        self._seen_at_s: float | None = None
        self._prior = _FIRST_REQUESTS if slo.reference_s is None else _REFERENCE_REQUESTS
        self._first_alone_s = slo.reference_s or (1 - _FIRST_TOLERANCE) * slo.threshold_s
        self._alone_s = self._first_alone_s
        self._accrued_s2 = 0.0
        self._last_s: float | None = None
        self._quiet_since_s = 0.0
        self._least_wait_s = 0.0
        self._with_prompts = False
        self._prompts = TimeShare(_PROMPTS_S)

    def set_objective(self, threshold_s: float, reference_s: float | None) -> None:
        """Replaces the objective, whose parts are as in ``Slo``.

        What was measured, and the bank's level, stay.
        """
        self._threshold_s = threshold_s
        self._reference_s = reference_s
        left_s = 0.0 if reference_s is None else threshold_s - reference_s
        tolerance_s = left_s if left_s > 0 else _FIRST_TOLERANCE * threshold_s
        self._bank.most_s = _SAVED_REQUESTS * tolerance_s
        self._bank.debt_s = _OWED_REQUESTS * tolerance_s

    @property
    def tolerance_s(self) -> float:
        """Mean latency that offline work may add; 0 where online traffic alone is too slow."""
        # What is measured here lacks the way to the client, which threshold and reference have.
        alone_s = max(self._alone_s + self._delay_s, self._reference_s or 0.0)
        return max(0.0, self._threshold_s - alone_s)

    @property
    def _share_s(self) -> float:
        tolerance_s = self.tolerance_s
        kept_s = self._kept_of_threshold * self._threshold_s
        most_s = max(tolerance_s - kept_s, _LEAST_OF_THRESHOLD * self._threshold_s)
        share = min(_TOLERANCE_SHARE, 1 - self._prompts.share)
        return min(share * tolerance_s, most_s)

    @property
    def wait_s(self) -> float:
        """Mean wait behind offline steps that a coming request can afford."""
        horizon = max(_HORIZON_REQUESTS, _HORIZON_SHARE * self._seen)
        share_s = self._share_s
        # Savings lengthen a step by a part of it only: longer ones gain little and make a tail.
        wait_s = share_s + min(self._bank.level_s / horizon, _SAVINGS_SHARE * share_s)
        return min(MOST_SHARE * self._threshold_s, max(self._least_wait_s, wait_s))

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """As long as the affordable wait pays for, or twice the fixed cost in turns."""
        if load.prefills or load.decoders:
            self._quiet_since_s = load.now_s
        self._with_prompts = load.prefills > 0
        quiet_s = load.now_s - self._quiet_since_s
        self._least_wait_s = _QUIET_SHARE * self._threshold_s if quiet_s >= FORGET_S else 0.0
        if load.prefills:
            return StepLimit(seconds=load.base_s, reason="ttft-prefill")
        if quiet_s >= FORGET_S and self._seen:
            self._forget()
        wait_s = self.wait_s
        length_s = max(_length_s(load, wait_s), SHORTEST_STEPS * load.idle_step_s)
        elapsed_s = 0.0 if self._last_s is None else max(0.0, load.now_s - self._last_s)
        accrued_s2 = self._accrued_s2 + wait_s * elapsed_s
        if accrued_s2 >= 0:
            return StepLimit(seconds=length_s, reason="ttft-mean")
        idle_s = -accrued_s2 / wait_s if wait_s > 0 else FORGET_S
        if quiet_s < FORGET_S:
            idle_s = min(idle_s, FORGET_S - quiet_s)
        return StepLimit(seconds=load.base_s, reason="ttft-mean", idle_s=idle_s)

    def prompts_share_steps(self, load: OnlineLoad) -> bool | None:
        """Not where savings are less than what they wait: half of the time of all, but the last."""
        wait_s = (load.prefills - 1) / 2 * (load.prompts_s or 0.0)
        return None if self._bank.level_s > wait_s else False

    def _forget(self) -> None:
        self._seen = 0.0
        # What leaves more than a new account knows of is kept: a night does not undo a good day.
        self._alone_s = min(self._alone_s, self._first_alone_s)
        self._bank.level_s = 0.0
        self._prompts.share = 0.0

    def _fade(self, passed_s: float) -> None:
        """Has what is known beforehand weigh more beside what was measured longer ago."""
        over_s = self._alone_s - self._first_alone_s
        if over_s <= 0:
            return
        kept = self._seen * exp(-passed_s / _MEMORY_S)
        over_s *= kept * (self._prior + self._seen) / (self._seen * (self._prior + kept))
        self._alone_s = self._first_alone_s + over_s
        self._seen = kept

    def on_step(self, times: StepTimes) -> None:
        """Charges the step's residual and accrues the time that passed."""
        wait_s = self.wait_s
        if self._last_s is not None:
            passed_s = max(0.0, times.ended_s - self._last_s)
            self._accrued_s2 += wait_s * passed_s
            self._prompts.observe(times.duration_s if self._with_prompts else 0.0, passed_s)
        self._last_s = times.ended_s
        if times.offline:
            # A pause of the machine is no step: what it cost is measured, and nobody waits longer
            # for offline work because of it than for a step as long as the threshold.
            cost_s2 = max(0.0, times.duration_s**2 - times.base_s**2) / 2
            cost_s2 += times.behind_s * max(0.0, times.duration_s - times.base_s)
            self._accrued_s2 -= min(cost_s2, self._threshold_s**2 / 2)
        # Credit of idle times is not hoarded: it would come out as one long step.
        self._accrued_s2 = min(self._accrued_s2, wait_s * max(wait_s, 0.02))

    def on_first_token(self, ttft_s: float, offline_delay_s: float) -> None:
        """Banks the difference of the delay to the share of the tolerance."""
        # One outlier must not hide what the others leave: it counts for twice the threshold.
        alone_s = min(max(ttft_s - offline_delay_s, 0.0), 2 * self._threshold_s)
        if self._last_s is not None:
            self._quiet_since_s = max(self._quiet_since_s, self._last_s)
            if self._seen_at_s is not None and self._seen > 0:
                self._fade(self._last_s - self._seen_at_s)
            self._seen_at_s = self._last_s
        self._seen = min(self._seen + 1, _SAMPLES)
        weight = 1 / min(self._seen + self._prior, _SAMPLES)
        self._alone_s += (alone_s - self._alone_s) * weight
        self._bank.add(self._share_s - offline_delay_s)

    def set_client_delay(self, delay_s: float) -> None:
        """Lowers the threshold, to no less than half."""
        self._delay_s = min(max(delay_s, 0.0), self._threshold_s / 2)


def _length_s(load: OnlineLoad, wait_s: float) -> float:
    """The step at which arrivals wait for ``wait_s`` on average because of offline work.

    Steps of S seconds where online work alone takes B: (S^2 - B^2) / 2 = w S, and where each is
    queued behind another as long (S^2 - B^2) / 2 + S (S - B) = w S.
    """
    planned_s, base_s = _PLANNED_SHARE * wait_s, load.base_s
    if load.busy_s > 0:
        least_s = 2 * wait_s / 3
        sum_s = planned_s + base_s
        length_s = (sum_s + sqrt(sum_s**2 + 3 * base_s**2)) / 3
    else:
        least_s = 2 * wait_s
        length_s = planned_s + sqrt(planned_s**2 + base_s**2)
    return least_s if wait_s <= load.idle_step_s else max(least_s, length_s)
