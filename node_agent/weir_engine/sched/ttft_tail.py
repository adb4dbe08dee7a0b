"""The account of a percentile of the time to first token."""

from bisect import insort
from collections import deque
from collections.abc import Callable
from math import sqrt

from weir_engine.config import Slo
from weir_engine.sched.account import OnlineLoad, QuietAccount, StepLimit
from weir_engine.sched.feedback import TailFeedback
from weir_engine.sched.prompt_queue import beside_prompts_s
from weir_engine.sched.ttft_account import (
    FORGET_S,
    KEPT_OF_THRESHOLD,
    MOST_SHARE,
    SHORTEST_STEPS,
)

# Before anything was measured, offline work may cost this share of the threshold, or what a step
# full of prompts leaves of it.
_FIRST_SHARE = 0.05
# A tail keeps ``KEPT_OF_THRESHOLD`` of a known tolerance for what offline work costs unseen: it is
# of few requests, and what moves the slowest of them is of its latency, not of the tolerance. Of a
# narrow one that share is spent whatever it leaves, up to this of the threshold.
_LEAST_OF_TOLERANCE = 0.65
_LEAST_OF_THRESHOLD = 0.04
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
        elif load.now_s - self._quiet_since_s >= FORGET_S and self._recent:
            self._forget()
        cap_s = min(self._headroom_s(), MOST_SHARE * self._threshold_s)
        if load.prefills:
            threshold_s = self._threshold_s - self._delay_s
            extra_s = beside_prompts_s(load, threshold_s=threshold_s, headroom_s=cap_s)
            limit_s = load.base_s + extra_s * self._feedback.factor
            return StepLimit(seconds=limit_s, reason="ttft-prefill")
        shortest_s = SHORTEST_STEPS * load.idle_step_s
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

    def prompts_share_steps(self, load: OnlineLoad) -> bool | None:
        """Not where one of those that are there would be late."""
        if load.prompts_s is None or load.earliest_arrival_s is None:
            return None
        waited_s = load.now_s + load.busy_s - load.earliest_arrival_s
        in_time = waited_s + load.prompts_s <= self._threshold_s - self._delay_s
        return None if in_time else False

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
    kept_s = KEPT_OF_THRESHOLD * slo.threshold_s
    least_s = min(_LEAST_OF_TOLERANCE * tolerance_s, _LEAST_OF_THRESHOLD * slo.threshold_s)
    return max(tolerance_s - kept_s, least_s)


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
