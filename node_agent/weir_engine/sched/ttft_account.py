"""Accounts of the time to first token: a virtual online request is always about to arrive."""

from bisect import insort
from collections import deque
from collections.abc import Callable
from math import exp, sqrt

from weir_engine.config import Slo
from weir_engine.sched.account import OnlineLoad, QuietAccount, StepLimit, StepTimes
from weir_engine.sched.feedback import SlackBank, TailFeedback
from weir_engine.sched.prompt_queue import beside_prompts_s

# Before anything was measured, offline work may cost this share of the threshold, or what a step
# full of prompts leaves of it.
_FIRST_SHARE = 0.05
# The mean account spends over this many coming requests, or this share of those it remembers.
_HORIZON_REQUESTS = 8.0
_HORIZON_SHARE = 0.15
_SAVINGS_SHARE = 0.3
# Never plan to spend more than this share of the threshold on waiting for offline steps.
_MOST_SHARE = 0.4
# Share of the tolerance that is spent on the delay that offline work causes; the rest is for what
# it costs unseen (caches, more overlap of online requests).
_TOLERANCE_SHARE = 0.65
# A step shorter than this many fixed costs wastes more than it computes.
_SHORTEST_STEPS = 2.0
# Share of the affordable wait that steps beside decoders plan with: the decoders that longer steps
# keep make the steps of prompts longer too.
_PLANNED_SHARE = 0.85
# Share of the threshold that a tail keeps of a known tolerance for what offline work costs unseen,
# and the share of the tolerance that is spent whatever that leaves: a tail is of few requests, and
# what moves the slowest of them is of its latency, not of the tolerance.
_KEPT_OF_THRESHOLD = 0.03
_LEAST_OF_TOLERANCE = 0.65
_TAIL_WINDOW = 400
_SHARE_OF_TAIL = 0.5
# Share of the tail's headroom that steps without prompts may cost it by ``tail_extra_s``, and the
# share while what they add is short. Measured tails pay less than half of that price, but longer
# steps gain less and less.
_SHARE_OF_HEADROOM = 0.9
_SHARE_WHILE_SHORT = 1.2
# A burst starts somewhere within a step; a tail request waits for this share of it, and for all of
# the step that is queued behind it, where one is.
_RESIDUAL = 0.75
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
_FORGET_S = 60.0
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
    present, offline work waits. The tolerance is what the SLO leaves over the latency of online
    traffic alone: the measured mean less the delay that offline work caused, and no less than the
    reference where there is one. So a burst of online requests earns nothing, and on a machine that
    has become slower there is less to spend. What is measured fades with time where it is above a
    new account's: the mean is over minutes, however few requests come in them. A minute without
    online requests ends what keeps offline work out: debts, such a mean, a tolerance of nothing.

    Source: design, "TTFT SLO: a virtual online request is always present"; the length follows from
    maximising (1 - c0/S) at mean residual S/2 (Poisson arrivals see time averages).
    """

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
        return _TOLERANCE_SHARE * self.tolerance_s

    @property
    def wait_s(self) -> float:
        """Mean wait behind offline steps that a coming request can afford."""
        horizon = max(_HORIZON_REQUESTS, _HORIZON_SHARE * self._seen)
        share_s = self._share_s
        # Savings lengthen a step by a part of it only: longer ones gain little and make a tail.
        wait_s = share_s + min(self._bank.level_s / horizon, _SAVINGS_SHARE * share_s)
        return min(_MOST_SHARE * self._threshold_s, max(self._least_wait_s, wait_s))

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """As long as the affordable wait pays for, or twice the fixed cost in turns."""
        if load.prefills or load.decoders:
            self._quiet_since_s = load.now_s
        quiet_s = load.now_s - self._quiet_since_s
        self._least_wait_s = _QUIET_SHARE * self._threshold_s if quiet_s >= _FORGET_S else 0.0
        if load.prefills:
            return StepLimit(seconds=load.base_s, reason="ttft-prefill")
        if quiet_s >= _FORGET_S and self._seen:
            self._forget()
        wait_s = self.wait_s
        length_s = max(_length_s(load, wait_s), _SHORTEST_STEPS * load.idle_step_s)
        elapsed_s = 0.0 if self._last_s is None else max(0.0, load.now_s - self._last_s)
        accrued_s2 = self._accrued_s2 + wait_s * elapsed_s
        if accrued_s2 >= 0:
            return StepLimit(seconds=length_s, reason="ttft-mean")
        idle_s = -accrued_s2 / wait_s if wait_s > 0 else _FORGET_S
        if quiet_s < _FORGET_S:
            idle_s = min(idle_s, _FORGET_S - quiet_s)
        return StepLimit(seconds=load.base_s, reason="ttft-mean", idle_s=idle_s)

    def _forget(self) -> None:
        self._seen = 0.0
        # What leaves more than a new account knows of is kept: a night does not undo a good day.
        self._alone_s = min(self._alone_s, self._first_alone_s)
        self._bank.level_s = 0.0

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
            self._accrued_s2 += wait_s * max(0.0, times.ended_s - self._last_s)
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


class TailTtftAccount(QuietAccount):
    """A percentile of TTFT: a step adds no more than what the tail request can still wait.

    Tail requests come in bursts, where offline work already waits; what is left of its share is
    the step in flight at the start of the burst, and the decoders that longer steps have kept. So
    the headroom is the threshold less the measured tail of TTFT without the offline-caused delay
    (or what may be spent of the tolerance where the reference is known), scaled by feedback on the
    measured tail, and a step beside decoders takes their own time and what this headroom pays for
    (``tail_extra_s``). Without ``prompt_step_s``, the time of a step full of prompts, and without
    decoders, the whole step stays within the headroom, and where one is queued behind another both
    together. Beside prompts that have time to spare
    offline work gets a share of that, within the same headroom: the first of them must not have
    waited, and all of them not take, so long that little is left. A minute without online requests
    ends what keeps offline steps short: a tail that leaves less than a new account's, feedback.

    Source: design, "TTFT SLO ... capped (percentile)".
    """

    def __init__(self, slo: Slo, *, prompt_step_s: Callable[[], float] | None = None) -> None:
        self._threshold_s = slo.threshold_s
        self._prompt_step_s = prompt_step_s
        self._delay_s = 0.0
        self._quantile = slo.quantile
        self._spendable_s = _spendable_s(slo)
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._new_feedback()
        self._quiet_since_s = 0.0

    def _new_feedback(self) -> None:
        allowed = (1 - self._quantile) * _SHARE_OF_TAIL
        self._feedback = TailFeedback(allowed=allowed, low=0.1)

    def _forget(self) -> None:
        """A minute without online requests ends what keeps offline work short, as for a mean."""
        self._new_feedback()
        recent, ordered = self._recent, self._sorted
        left_s = self._headroom_s()
        self._recent, self._sorted = deque(), []
        if self._headroom_s() <= left_s:  # what leaves more than a new account knows of is kept
            self._recent, self._sorted = recent, ordered

    def _headroom_s(self) -> float:
        if self._spendable_s is not None:
            return self._spendable_s
        threshold_s = self._threshold_s - self._delay_s
        if not self._sorted:
            alone_s = self._prompt_step_s() if self._prompt_step_s is not None else 0.0
            least_s = _FIRST_SHARE * threshold_s
            return max(threshold_s - alone_s, least_s) if alone_s > 0 else least_s
        index = min(len(self._sorted) - 1, int(self._quantile * len(self._sorted)))
        return max(threshold_s - self._sorted[index], 0.0)

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """What the headroom pays for, no less than two fixed costs; a share beside prompts."""
        if load.prefills or load.decoders:
            self._quiet_since_s = load.now_s
        elif load.now_s - self._quiet_since_s >= _FORGET_S and self._recent:
            self._forget()
        cap_s = min(self._headroom_s(), _MOST_SHARE * self._threshold_s)
        if load.prefills:
            threshold_s = self._threshold_s - self._delay_s
            extra_s = beside_prompts_s(load, threshold_s=threshold_s, headroom_s=cap_s)
            limit_s = load.base_s + extra_s * self._feedback.factor
            return StepLimit(seconds=limit_s, reason="ttft-prefill")
        shortest_s = _SHORTEST_STEPS * load.idle_step_s
        paid_s = cap_s * self._feedback.factor
        limit_s = paid_s / 2 if load.busy_s > 0 else paid_s
        prompt_step_s = self._prompt_step_s() if self._prompt_step_s is not None else 0.0
        if load.decoders and prompt_step_s > 0:
            steps = self._threshold_s / prompt_step_s
            extra_s, more_s = (
                tail_extra_s(load, headroom_s=share * paid_s, prompt_steps=steps)
                for share in (_SHARE_OF_HEADROOM, _SHARE_WHILE_SHORT)
            )
            limit_s = load.base_s + max(extra_s, min(more_s, shortest_s))
        return StepLimit(seconds=max(limit_s, shortest_s), reason="ttft-tail")

    def on_first_token(self, ttft_s: float, offline_delay_s: float) -> None:
        """Feeds the tail, and the tail without offline work."""
        base_s = max(ttft_s - offline_delay_s, 0.0)
        if len(self._recent) == _TAIL_WINDOW:
            self._sorted.remove(self._recent.popleft())
        self._recent.append(base_s)
        insort(self._sorted, base_s)
        threshold_s = self._threshold_s - self._delay_s
        # A request that would have been late anyway says nothing about offline work.
        # Nor does a pause of the machine: no plan delays a request by the threshold.
        caused = base_s <= threshold_s < ttft_s and offline_delay_s <= threshold_s
        self._feedback.observe(over=caused)
        self._feedback.end_step()  # each request is a sample of its own

    def set_client_delay(self, delay_s: float) -> None:
        """Lowers the threshold, to no less than half."""
        self._delay_s = min(max(delay_s, 0.0), self._threshold_s / 2)


def _spendable_s(slo: Slo) -> float | None:
    """What offline work may cost a tail whose reference is known; None where it is not."""
    tolerance_s = slo.tolerance_s
    if tolerance_s is None:
        return None
    kept_s = _KEPT_OF_THRESHOLD * slo.threshold_s
    return max(tolerance_s - kept_s, _LEAST_OF_TOLERANCE * tolerance_s)


def tail_extra_s(load: OnlineLoad, *, headroom_s: float, prompt_steps: float) -> float:
    """Seconds of offline work that a step of decodes may add, at most ``headroom_s``.

    Steps longer by x seconds of offline work keep requests decoding for longer, and their decodes
    lengthen steps once more: with the fixed cost c0 and a base of B, each step is longer by
    x (B + x) / (c0 + x) than without offline work, x (B - c0) / (c0 + x) of it by decoders. A tail
    request waits for a part of the first, for all of another where steps are queued, and its own
    ``prompt_steps`` are each longer by the second; x is where the two add up to the headroom.

    Source: Weir; Little's law.
    """
    fixed_s, base_s = load.idle_step_s, max(load.base_s, load.idle_step_s)
    steps = _RESIDUAL + (load.busy_s > 0)
    linear_s = steps * base_s + prompt_steps * (base_s - fixed_s) - headroom_s
    root_s = sqrt(linear_s**2 + 4 * steps * headroom_s * fixed_s)
    return min(headroom_s, (root_s - linear_s) / (2 * steps))
