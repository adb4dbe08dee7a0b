"""Accounts where nobody gave an objective: a share over what online traffic alone would have.

There is no threshold to measure against. What each token and each first token would have taken
without offline work is known from the steps themselves, as what they took less what offline work
added to it, so it follows the traffic and the machine.

Source: design §9, "No SLO given"; the estimate goes on where that is measured once, at start,
when no traffic is there yet.
"""

from typing import ClassVar

from typing_extensions import override

from weir_engine.config import Metric, Slo
from weir_engine.sched.account import OnlineLoad, StepLimit, StepTimes
from weir_engine.sched.tbt_account import MeanTbtAccount
from weir_engine.sched.ttft_account import MeanTtftAccount

_TOKENS = 1000  # the mean of TBT without offline work is over about so many tokens
# Without online requests for this long the next one is alone: it pays for one step of this many
# fixed costs, half of that on average, and meets no other that offline work delays.
_QUIET_S = 60.0
_QUIET_STEPS = 4.0
# A first token before any is measured takes so many fixed costs: the least that it can be.
_FIRST_STEPS = 2.0
# The least of so many first ones replaces the guess: each may be a long prompt's, or have met a
# pause of the machine. It weighs as much as they do, less than a reference that was measured.
_FEW = 8
_UNKNOWN_S = 0.01  # the fixed cost of an engine that has not computed yet


class TbtOverAlone(MeanTbtAccount):
    """A mean of TBT at most ``share`` above what the same tokens would have taken alone.

    Until the first token between two steps is measured nothing is added to steps with a decoder.
    """

    def __init__(self, share: float) -> None:
        super().__init__(_slo(Metric.TBT, _UNKNOWN_S, share))
        self._share = share
        self._alone_s = 0.0
        self._tokens = 0

    @property
    def bank_s(self) -> float:
        """Slack in hand, in seconds summed over tokens: of delays that offline work caused."""
        return self._caused.level_s

    def on_token(self, tbt_s: float, offline_delay_s: float) -> None:
        """Follows what a token takes alone, and banks the difference to the share of it."""
        self._tokens = min(self._tokens + 1, _TOKENS)
        self._alone_s += (max(tbt_s - offline_delay_s, 0.0) - self._alone_s) / self._tokens
        if self._alone_s > 0:
            self.set_objective((1 + self._share) * self._alone_s, self._alone_s)
            super().on_token(tbt_s, offline_delay_s)


class TtftOverAlone(MeanTtftAccount):
    """A mean of TTFT at most ``share`` above what the same requests would have had alone.

    ``fixed_s`` is the fixed cost of a step, 0 where it is not known yet. After a minute without
    online requests steps have their own, longer bound. No part of the threshold is kept for what
    offline work costs unseen: it is no bound that somebody relies on.
    """

    _kept_of_threshold: ClassVar[float] = 0.0

    def __init__(self, share: float, *, fixed_s: float) -> None:
        super().__init__(_slo(Metric.TTFT, _FIRST_STEPS * (fixed_s or _UNKNOWN_S), share))
        self._share = share
        self._quiet = False
        self._measured = 0
        self._prior = _FEW

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """That of a mean with such a threshold, while there is online traffic."""
        limit = super().step_limit(load)
        self._quiet = load.now_s - self._quiet_since_s >= _QUIET_S
        if not self._quiet:
            return limit
        fixed_s = load.idle_step_s or _UNKNOWN_S
        return StepLimit(seconds=_QUIET_STEPS * fixed_s, reason="ttft-quiet")

    def on_step(self, times: StepTimes) -> None:
        """Charges the step; nobody is charged for what a quiet time took."""
        super().on_step(times)
        if self._quiet:
            self._accrued_s2 = max(self._accrued_s2, 0.0)

    def on_first_token(self, ttft_s: float, offline_delay_s: float) -> None:
        """Follows what a first token takes alone."""
        if self._measured < _FEW:
            alone_s = max(ttft_s - offline_delay_s, 0.0)
            self._set_alone(min(alone_s, self._alone_s) if self._measured else alone_s)
            self._measured += 1
        super().on_first_token(ttft_s, offline_delay_s)
        self._set_alone(self._alone_s)

    def _set_alone(self, alone_s: float) -> None:
        self._alone_s = alone_s
        if alone_s > 0:
            self.set_objective((1 + self._share) * alone_s, alone_s)

    @override
    def _fade(self, passed_s: float) -> None:
        # Nor does it, however old.
        pass

    @override
    def _forget(self) -> None:
        # What was measured is the reference here: it keeps no offline work out.
        self._bank.level_s = 0.0


def _slo(metric: Metric, alone_s: float, share: float) -> Slo:
    return Slo(
        metric=metric, statistic="mean", threshold_s=(1 + share) * alone_s, reference_s=alone_s
    )
