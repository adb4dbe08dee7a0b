"""The account of a mean of the time between tokens: a bank of slack."""

from weir_engine.config import Slo
from weir_engine.sched.account import NO_LIMIT, OnlineLoad, QuietAccount, StepLimit, StepTimes
from weir_engine.sched.feedback import Rate, SlackBank, TimeShare

# Beside as many decoders as tokens usually have the bank is spent where it is filled to this share,
# beside others to one in proportion to their number, so most is spent where it costs least. It is
# spent down to a share of that: long episodes, since requests that leave and rejoin the running
# batch cost the engine time.
_BANK_USUAL = 0.9
_BANK_LOW = 0.25
# It pays for no step that adds less than so many times what offline work costs a step by being in
# it at all, unless the bank is as full as it may be before it is spent: it waits until it can.
_SURCHARGES = 10.0
# How many decoders are usual is known over about so many tokens.
_USUAL_TOKENS = 2000.0
# Savings are this share of what the tokens of a minute may be delayed by, and of so many tokens at
# least: the smaller they are the more the price follows every burst, and the larger the further
# above its SLO a minute can end in which they are spent.
_SAVED_OF_MINUTE = 0.12
_MINUTE_S = 60.0
_SAVED_TOKENS = 300.0
# Debts are what so many tokens may take.
_OWED_TOKENS = 1000.0
# Spending starts at no more than a share of that: what comes while the bank is full is lost.
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
_KEPT_OF_THRESHOLD = 0.025
# No more tokens than these are promised to change nothing: what is usual changes meanwhile.
_MOST_TOKENS = 256
# How much of the time online work takes is known over about this long. It is taken to leave no
# less of it than this to what a delay begets.
_WORK_S = 60.0
_LEAST_LEFT = 0.2


class MeanTbtAccount(QuietAccount):
    """A mean of TBT: slack is banked by fast tokens and spent where it is cheapest.

    The bank is the sum of threshold - TBT over tokens, in seconds; where the latency of online
    traffic alone is known, it is no more than the sum of tolerance - delay caused by offline work,
    so that what a quiet hour earns is not spent before a burst. Who is delayed decodes for longer
    beside others, whose steps it lengthens: where online work beyond fixed costs takes a share u
    of the time, tokens are later by 1 / (1 - u) times a delay (Little's law), and so much of it is
    charged. Lengthening a step by E costs E for each online decoder, so a step with few decoders
    buys most: spending starts at a level of the bank that grows with their number over what is
    usual, which makes the level the price, and savings of seconds keep that steady. Fewer
    decoders wait then while others come, and tokens are made in fewer steps. Steps without a
    decoder are free, but shorter the more the bank owes.

    Source: design, "Mean SLO: segregate".
    """

    def __init__(self, slo: Slo) -> None:
        self._delay_s = 0.0
        self._measured = SlackBank()
        self._caused = SlackBank()
        self._spending_decoders = 0
        self._rate = Rate(_MINUTE_S)
        self._usual_decoders = 0.0  # 0 until a step with online tokens ended
        self._step_tokens = 0
        self._work = TimeShare(_WORK_S)
        self._idle_step_s = 0.0
        self._last_s: float | None = None
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
        self._measured.debt_s = self._caused.debt_s = _OWED_TOKENS * threshold_s
        self._bound_savings()

    def _bound_savings(self) -> float:
        """Sets what may be saved, and says it, in seconds over tokens."""
        tokens = max(_SAVED_OF_MINUTE * _MINUTE_S * self._rate.per_s, _SAVED_TOKENS)
        most_s = tokens * self._saving_s
        self._caused.most_s = self._measured.most_s = most_s
        return most_s

    @property
    def bank_s(self) -> float:
        """Slack in hand, seconds summed over tokens; negative while the mean is above the SLO."""
        if self._tolerance_s is None:
            return self._measured.level_s
        return min(self._measured.level_s, self._caused.level_s)

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """The online work's own time plus what the bank affords."""
        self._idle_step_s = load.idle_step_s
        if load.decoders == 0:
            return self._limit_without_decoders(load)
        most_s = self._bound_savings()
        start_s = self._start_level(load.decoders) * most_s
        # Going on is cheaper than to start, but not at a higher price.
        going_on = load.decoders <= self._spending_decoders
        if self.bank_s > start_s * (_BANK_LOW if going_on else 1.0):
            self._spending_decoders = load.decoders
        else:
            self._spending_decoders = 0
            tokens = self._tokens_below(min(start_s, _BANK_USUAL * most_s))
            return StepLimit(seconds=load.base_s, reason="tbt-mean", tokens=tokens)
        extra_s = (self.bank_s - start_s * _BANK_LOW) / load.decoders
        from_savings = self.bank_s < _MOST_LEVEL * most_s  # what is full would be lost
        if from_savings and extra_s < _SURCHARGES * load.surcharge_s:
            return StepLimit(seconds=load.base_s, reason="tbt-mean")
        return StepLimit(
            seconds=load.base_s + extra_s, reason="tbt-mean", from_savings=from_savings
        )

    def _start_level(self, decoders: int) -> float:
        """The share of what may be saved at which spending beside so many decoders starts."""
        usual = max(self._usual_decoders, 1.0)
        return min(_BANK_USUAL * decoders / usual, _MOST_LEVEL)

    def _tokens_below(self, level_s: float) -> int:
        """How many tokens come before the bank is above that level, however fast they are."""
        most_s = self._threshold_s - self._kept_s - self._delay_s
        tokens = _tokens_between(self._measured.level_s, level_s, most_s)
        if self._tolerance_s is not None:
            caused_s = self._tolerance_s - self._kept_s
            tokens = max(tokens, _tokens_between(self._caused.level_s, level_s, caused_s))
        return tokens

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
            left = max(1 - self._work.share, _LEAST_LEFT)
            self._caused.add(self._tolerance_s - self._kept_s - offline_delay_s / left)

    def on_step(self, times: StepTimes) -> None:
        """Counts the tokens of the step before: each had as many decoders in its step."""
        tokens, self._step_tokens = self._step_tokens, 0
        if self._last_s is not None:
            passed_s = times.ended_s - self._last_s
            self._work.observe(times.base_s - self._idle_step_s, passed_s)
            self._rate.observe(tokens, passed_s)
        self._last_s = times.ended_s
        if not tokens:
            return
        if not self._usual_decoders:
            self._usual_decoders = float(tokens)
        weight = min(tokens / _USUAL_TOKENS, 1.0)
        self._usual_decoders += (tokens - self._usual_decoders) * weight

    def set_client_delay(self, delay_s: float) -> None:
        """Lowers the threshold, to no less than half."""
        self._delay_s = min(max(delay_s, 0.0), self._threshold_s / 2)


def _tokens_between(now_s: float, level_s: float, most_s: float) -> int:
    """How many tokens that bank no more than ``most_s`` each stay below the level for sure."""
    missing_s = max(level_s - now_s, 0.0)
    if missing_s >= _MOST_TOKENS * most_s:
        return _MOST_TOKENS
    return max(int(missing_s / most_s) - 1, 0)
