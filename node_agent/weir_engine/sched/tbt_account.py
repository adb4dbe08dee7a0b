"""Accounts of the time between tokens: a percentile is a deadline, a mean is a bank of slack."""

from math import inf

from weir_engine.config import Slo
from weir_engine.latency.models import LatencyModel
from weir_engine.sched.account import NO_LIMIT, OnlineLoad, QuietAccount, StepLimit, StepTimes
from weir_engine.sched.feedback import SlackBank, TailFeedback

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
# The bank must be filled to this share before it is spent beside as many decoders as tokens usually
# have, beside others to a share that grows with the square of their number: then most is spent
# where it costs least. It is spent down to a share of that: long episodes, since requests that
# leave and rejoin the running batch cost the engine time.
_BANK_USUAL = 0.5
_BANK_LOW = 0.25
# It pays for no step that adds less than so many times what offline work costs a step by being in
# it at all, unless the bank is as full as it may be before it is spent: it waits until it can.
_SURCHARGES = 10.0
# How many decoders are usual is known over about so many tokens.
_USUAL_TOKENS = 2000.0
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
# What the mean account may save, and owe, in tokens whose tolerance went unused: savings of so many
# tokens, or of so many for each decoder where that is more. Spending starts at no more than a share
# of that: what comes while the bank is full is lost.
_SAVED_TOKENS = 300.0
_SAVED_TOKENS_A_DECODER = 24.0
_OWED_TOKENS = 1000.0
_MOST_LEVEL = 0.95
# Steps without a decoder are free but for the prompts that come meanwhile: they wait, start
# together and have more decoders beside them. In debt such a step takes so many fixed costs at
# most, from hardly any debt to one that is some times what may be saved. Shorter ones would waste
# more than they mend where the machine itself has become slower.
_LONGEST_IN_DEBT = 20.0
_SHORTEST_IN_DEBT = 8.0
# Without a reference the tolerance is taken to be this share of the threshold.
_FIRST_TOLERANCE = 0.2
# Share of a known tolerance that is kept for what offline work costs unseen, and share of the
# threshold that is kept at least: a machine's own drift is of its latency, not of the tolerance.
_KEPT_OF_TOLERANCE = 0.1
_KEPT_OF_THRESHOLD = 0.015


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


class MeanTbtAccount(QuietAccount):
    """A mean of TBT: slack is banked by fast tokens and spent where it is cheapest.

    The bank is the sum of threshold - TBT over tokens, in seconds; where the latency of online
    traffic alone is known, it is no more than the sum of tolerance - delay caused by offline work,
    so that what a quiet hour earns is not spent before a burst. Lengthening a step by E
    costs E for each online decoder, so a step with few decoders buys most: spending starts at a
    level of the bank that grows with their number over what is usual, which makes the level the
    price. Fewer decoders wait then while others come, and tokens are made in fewer steps. Steps
    without a decoder are free, but shorter the more the bank owes.

    Source: design, "Mean SLO: segregate".
    """

    def __init__(self, slo: Slo) -> None:
        self._delay_s = 0.0
        self._measured = SlackBank()
        self._caused = SlackBank()
        self._spending_decoders = 0
        self._saved_tokens = _SAVED_TOKENS
        self._usual_decoders = 0.0  # 0 until a step with online tokens ended
        self._step_tokens = 0
        self.set_objective(slo.threshold_s, slo.reference_s)

    def set_objective(self, threshold_s: float, reference_s: float | None) -> None:
        """Replaces the objective, whose parts are as in ``Slo``; the banks keep their levels."""
        self._threshold_s = threshold_s
        self._tolerance_s = None if reference_s is None else max(0.0, threshold_s - reference_s)
        self._kept_s = 0.0
        if self._tolerance_s is not None:
            kept_s = max(_KEPT_OF_TOLERANCE * self._tolerance_s, _KEPT_OF_THRESHOLD * threshold_s)
            self._kept_s = min(kept_s, self._tolerance_s)
        self._saving_s = self._tolerance_s or _FIRST_TOLERANCE * threshold_s
        for bank in (self._measured, self._caused):
            bank.most_s = self._saved_tokens * self._saving_s
            bank.debt_s = _OWED_TOKENS * threshold_s

    @property
    def bank_s(self) -> float:
        """Slack in hand, seconds summed over tokens; negative while the mean is above the SLO."""
        if self._tolerance_s is None:
            return self._measured.level_s
        return min(self._measured.level_s, self._caused.level_s)

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """The online work's own time plus what the bank affords."""
        if load.decoders == 0:
            return self._limit_without_decoders(load)
        self._saved_tokens = max(_SAVED_TOKENS, _SAVED_TOKENS_A_DECODER * load.decoders)
        most_s = self._saved_tokens * self._saving_s
        self._measured.most_s = self._caused.most_s = most_s
        start_s = self._start_level(load.decoders) * most_s
        # Going on is cheaper than to start, but not at a higher price.
        going_on = load.decoders <= self._spending_decoders
        if self.bank_s > start_s * (_BANK_LOW if going_on else 1.0):
            self._spending_decoders = load.decoders
        else:
            self._spending_decoders = 0
            return StepLimit(seconds=load.base_s, reason="tbt-mean")
        extra_s = (self.bank_s - start_s * _BANK_LOW) / load.decoders
        if extra_s < _SURCHARGES * load.surcharge_s and self.bank_s < _MOST_LEVEL * most_s:
            return StepLimit(seconds=load.base_s, reason="tbt-mean")
        return StepLimit(
            seconds=load.base_s + extra_s,
            reason="tbt-mean",
            from_savings=self.bank_s < most_s,  # what is full would be lost
        )

    def _start_level(self, decoders: int) -> float:
        """The share of what may be saved at which spending beside so many decoders starts."""
        usual = max(self._usual_decoders, 1.0)
        return min(_BANK_USUAL * (decoders / usual) ** 2, _MOST_LEVEL)

    def _limit_without_decoders(self, load: OnlineLoad) -> StepLimit:
        debts = -self.bank_s / self._caused.most_s
        if debts <= 0:
            return NO_LIMIT
        steps = max(_LONGEST_IN_DEBT / (1 + debts), _SHORTEST_IN_DEBT)
        return StepLimit(seconds=load.base_s + steps * load.idle_step_s, reason="tbt-mean")

    def prompts_share_steps(self, load: OnlineLoad) -> bool | None:  # noqa: ARG002
        """While it owes: decoders wait for each step of prompts, for fewer steps less."""
        return True if self.bank_s < 0 else None

    def on_token(self, tbt_s: float, offline_delay_s: float) -> None:
        """Banks the difference to the threshold, and to the tolerance where that is known."""
        self._step_tokens += 1
        self._measured.add(self._threshold_s - self._kept_s - self._delay_s - tbt_s)
        if self._tolerance_s is not None:
            self._caused.add(self._tolerance_s - self._kept_s - offline_delay_s)

    def on_step(self, times: StepTimes) -> None:  # noqa: ARG002
        """Counts the tokens of the step before: each had as many decoders in its step."""
        tokens, self._step_tokens = self._step_tokens, 0
        if not tokens:
            return
        if not self._usual_decoders:
            self._usual_decoders = float(tokens)
        weight = min(tokens / _USUAL_TOKENS, 1.0)
        self._usual_decoders += (tokens - self._usual_decoders) * weight

    def set_client_delay(self, delay_s: float) -> None:
        """Lowers the threshold, to no less than half."""
        self._delay_s = min(max(delay_s, 0.0), self._threshold_s / 2)
