"""The account of a percentile of the time between tokens: each has a deadline."""

from math import inf

from weir_engine.config import Slo
from weir_engine.latency.models import LatencyModel
from weir_engine.sched.account import OnlineLoad, QuietAccount, StepLimit, StepTimes
from weir_engine.sched.feedback import TailFeedback

# Share of the SLO's own tail that planning aims at; the rest is for what no plan foresees. The
# budget is the median whose residual stays within the threshold but for that share.
_TAIL_SHARE = 0.35
# Where whole online prefills use most of the tail (below) it is this share, and no more than a
# tenth of it while they have used all that they may: the sum is what the percentile sees.
_TAIL_SHARE_BESIDE_PREFILL = 0.2
_LEAST_AIMED = 0.1
# Packed steps end so much before the deadline, or the percentile would lie on it, and a client see
# it above in every other run; no more of it than a share of the tolerance, where that is known. A
# step this much shorter serves next to nothing less.
_KEPT = 0.02
_KEPT_OF_TAIL_TOLERANCE = 0.2
# Beside whole prefills it is more: what steps overrun it by is a few percent mostly, and the few
# late tokens that are left belong to prompts.
_KEPT_BESIDE_PREFILL = 0.05
# No residual takes more than this share of the slack away: one that is as long as the slack is a
# pause of the machine, which shorter steps meet as well, and more of them.
_GUARD_SHARE = 0.5
# Share of the allowed late tokens that whole online prefills may use, and what may be saved of it:
# so many tokens, or so many for each decoder where that is more. More decoders have more tokens a
# minute, and a percentile is of some minute: what was saved before it is late in it all the same.
_CREDIT_SHARE = 0.75
_FIRST_CREDIT = 2.0
_MOST_CREDIT = 4.0
_CREDIT_A_DECODER = 4.0
# Late tokens that are still paid back; more are of an overload that no credit mends.
_MOST_DEBT = 250.0
# So many are deep in debt, however many decoders there are.
_DEEP_DEBT = 200.0
# Late tokens on credit for prompts that would miss a percentile of TTFT in chunks, likewise.
_OVERDRAFT = 8.0


def guard_quantile(aimed: float) -> float:
    """The residual quantile that leaves the share ``aimed`` of steps late."""
    return 1 - aimed


def _kept_s(slo: Slo, *, whole_prefill: bool) -> float:
    """What packed steps leave of the time to a token's deadline."""
    if whole_prefill:
        return _KEPT_BESIDE_PREFILL * slo.threshold_s
    kept_s = _KEPT * slo.threshold_s
    if slo.reference_s is None:
        return kept_s
    return min(kept_s, _KEPT_OF_TAIL_TOLERANCE * max(0.0, slo.threshold_s - slo.reference_s))


class TailTbtAccount(QuietAccount):
    """A percentile of TBT: every step with an online decoder ends before its next deadline.

    The slack of the decoder that waits longest, less the residual quantile of the prediction, is
    the limit, no less than half of the slack, for online prefill as for offline work: the step is
    packed up to it. The measured tail scales the limit, which never exceeds the slack itself. Where
    TTFT has an objective too, chunking is not free: the late tokens that the percentile allows are
    a credit, and online prefill runs whole while there is one for each decoder that it delays. It
    may be overdrawn for prompts that would be later in chunks than ``ttft_tail_s``, the threshold
    of a percentile of TTFT: those that need it most come when bursts have spent it, and short
    prompts pay it back. Offline work never spends it. What is saved and overdrawn grows with the
    decoders, as the tokens do of which the percentile is. Their late tokens and those of packed
    steps are one percentile: packed steps aim at less of it then, the less the more credit is used.
    They end a little before the deadline, with such an objective or without it.

    Where decodes fill a step so far that not even a fixed cost's worth of prefill ends in time,
    chunks are small and most of them late: prompts run whole whatever the credit, or, where TTFT
    has no objective, while more tokens were late than could be overdrawn.

    Source: design, "Tail SLO: pack"; HyGen §4.2 has one static budget instead.
    """

    def __init__(
        self,
        slo: Slo,
        model: LatencyModel,
        *,
        whole_prefill: bool = False,
        ttft_tail_s: float | None = None,
    ) -> None:
        self._threshold_s = slo.threshold_s
        self._kept_s = _kept_s(slo, whole_prefill=whole_prefill)
        self._delay_s = 0.0
        self._model = model
        tail_share = _TAIL_SHARE_BESIDE_PREFILL if whole_prefill else _TAIL_SHARE
        self._aimed = (1 - slo.quantile) * tail_share
        self._guard_quantile = guard_quantile(self._aimed)
        self._feedback = TailFeedback(allowed=self._aimed, high=1.15)
        self._whole_prefill = whole_prefill
        self._ttft_tail_s = ttft_tail_s
        self._allowed = (1 - slo.quantile) * _CREDIT_SHARE
        self._credit = _FIRST_CREDIT
        self._most_credit = _MOST_CREDIT

    def _limit(self, load: OnlineLoad) -> float:
        if load.earliest_token_s is None:
            return inf
        slack_s = self._slack_s(load.now_s - load.earliest_token_s)
        return min(slack_s, self._guarded_s(slack_s) * self._feedback.factor)

    def _slack_s(self, waited_s: float) -> float:
        """Seconds to the deadline, less what is kept of them."""
        return self._threshold_s - self._kept_s - self._delay_s - waited_s

    def _guarded_s(self, slack_s: float) -> float:
        """The median that ends within the slack but for the aimed share."""
        guarded_s = self._model.within(max(slack_s, 0.0), self._guard_quantile)
        return max(guarded_s, (1 - _GUARD_SHARE) * slack_s)

    def prefill_limit(self, load: OnlineLoad) -> float:
        """Online prefill is chunked so that online decoders keep their pace, or paid by credit."""
        overdraft = max(_OVERDRAFT, _CREDIT_A_DECODER * load.decoders)
        if self._whole_prefill:
            left = self._credit + (overdraft if self._too_late_in_chunks(load) else 0.0)
            if left >= load.decoders:
                return inf
        in_debt = self._credit < -min(overdraft, _DEEP_DEBT)
        if self._is_cramped(load) and (self._whole_prefill or in_debt):
            return inf
        limit_s = self._limit(load)
        if self._whole_prefill or load.earliest_token_s is None:
            return limit_s
        # Whatever was late before: prompts get a fixed cost's worth while the deadline allows it.
        guarded_s = self._guarded_s(self._slack_s(load.now_s - load.earliest_token_s))
        return max(limit_s, min(guarded_s, load.base_s + load.idle_step_s))

    def _is_cramped(self, load: OnlineLoad) -> bool:
        """Whether decodes leave less than a fixed cost's worth of a step to prefill."""
        if load.earliest_token_s is None:
            return False
        slack_s = self._slack_s(load.now_s - load.earliest_token_s)
        return slack_s < load.base_s + load.idle_step_s

    def _too_late_in_chunks(self, load: OnlineLoad) -> bool:
        if self._ttft_tail_s is None or load.prompts_s is None or load.earliest_arrival_s is None:
            return False
        waited_s = load.now_s - load.earliest_arrival_s
        return waited_s + load.prompts_s > self._ttft_tail_s

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """The slack of the decoder that waits longest."""
        self._most_credit = max(_MOST_CREDIT, _CREDIT_A_DECODER * load.decoders)
        return StepLimit(seconds=self._limit(load), reason="tbt-tail")

    def on_token(self, tbt_s: float, offline_delay_s: float) -> None:
        """Feeds the tail and the credit."""
        threshold_s = self._threshold_s - self._delay_s
        late = tbt_s > threshold_s
        self._credit = min(self._most_credit, max(-_MOST_DEBT, self._credit + self._allowed - late))
        aimed_s = threshold_s - self._kept_s
        over = tbt_s > aimed_s
        if self._whole_prefill:  # what a whole prefill made late was paid for
            over = over and aimed_s >= tbt_s - offline_delay_s
            left = min(max(self._credit / self._most_credit, 0.0), 1.0)
            self._feedback.allowed = self._aimed * (_LEAST_AIMED + (1 - _LEAST_AIMED) * left)
        self._feedback.observe(over=over)

    def on_step(self, times: StepTimes) -> None:  # noqa: ARG002
        """Closes the tokens of the step before."""
        self._feedback.end_step()

    def set_client_delay(self, delay_s: float) -> None:
        """Lowers the threshold, to no less than half."""
        self._delay_s = min(max(delay_s, 0.0), self._threshold_s / 2)
