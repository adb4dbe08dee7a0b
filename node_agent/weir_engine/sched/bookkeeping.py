"""What steps tell the model and the accounts: at once, or many steps at a time.

While only online requests are there nobody asks the accounts anything, nor while an account has
said that its answer stays the same. Asked and told step by step all the same, each would fetch its
code and numbers into the processor's caches, out of which the model's own step has just pushed
them: that costs several times what there is to compute.
"""

from typing import NamedTuple

from weir_engine.latency.features import StepShape
from weir_engine.latency.models import LatencyModel
from weir_engine.sched.account import NO_LIMIT, OnlineLoad, StepLimit, StepTimes
from weir_engine.sched.budget import StepBudget
from weir_engine.sched.surcharge import Surcharge

# So many steps are told together, each with the load that it was planned with. More would save
# little and make the one that tells them longer.
_MOST_STEPS = 16


_Token = tuple[float, float, float | None]
"""An online token but the first: its gap, the delay in it, how late it is (None: by no pace)."""


class _Step(NamedTuple):
    """A step that ended, and the tokens that it gave; ``seconds`` None where it was not timed."""

    shape: StepShape
    seconds: float | None
    times: StepTimes
    tokens: list[_Token]


class Bookkeeping:
    """Asks the budget, and tells its accounts and the model what happened, in order.

    Whoever asks gets the answer that follows from all that was told before. What is told
    ``later`` waits for the next question, or for some more steps; until then the model predicts
    without it. ``surcharge`` is what offline work costs steps of decodes. Times are seconds.
    """

    def __init__(self, budget: StepBudget, model: LatencyModel) -> None:
        self._budget = budget
        self._model = model
        self._accounts = budget.accounts
        self.surcharge = Surcharge()
        self._waiting: list[OnlineLoad | _Step] = []
        self._tokens: list[_Token] | None = None  # of a step that is told later
        self._quiet_decoders = 0  # beside so many nothing is left to offline work
        self._quiet_tokens = -1  # for so many more tokens
        self._quiet_reason = ""

    @property
    def is_quiet(self) -> bool:
        """True while the last answer stays: beside as many decoders nothing is left."""
        return self._quiet_tokens >= 0

    def is_quiet_beside(self, decoders: int) -> bool:
        """Whether a step of so many decodes still leaves nothing to offline work."""
        return self._quiet_tokens >= 0 and decoders == self._quiet_decoders

    def prefill_limit(self, load: OnlineLoad) -> float:
        """Longest step that online prefill may fill (predicted median)."""
        self.settle()
        return self._budget.prefill_limit(load)

    def step_limit(self, load: OnlineLoad, *, stays: bool = True) -> StepLimit:
        """Longest step with offline work in it.

        ``stays`` False: it is asked again for the next step, even if the answer will be the same.
        """
        self.settle()
        limit = self._budget.step_limit(load)
        if stays and limit.tokens and limit.seconds <= load.base_s and not load.prefills:
            self._quiet_decoders, self._quiet_tokens = load.decoders, limit.tokens
            self._quiet_reason = limit.reason
            return limit._replace(seconds=load.base_s)  # as it is without asking
        return limit

    def prompts_share_steps(self, load: OnlineLoad) -> bool:
        """Whether prompts share steps although those that end first wait for the others.

        Where one objective gains by it and none is against it.
        """
        self.settle()
        answers = [account.prompts_share_steps(load) for account in self._accounts]
        return True in answers and False not in answers

    def without_offline(self, load: OnlineLoad) -> StepLimit:
        """A step that no offline work can be in is planned: nobody needs its limit.

        The accounts hear of its load all the same.
        """
        if not self._accounts:  # asking costs nothing then
            return self._budget.step_limit(load)
        if len(self._waiting) >= 4 * _MOST_STEPS:  # of plans that were never sent
            self._tell()
        self._waiting.append(load)
        if self._quiet_tokens < 0:
            return NO_LIMIT
        return StepLimit(seconds=load.base_s, reason=self._quiet_reason)

    def step(
        self, shape: StepShape, seconds: float | None, times: StepTimes, *, later: bool
    ) -> None:
        """A step ended; ``seconds`` are what the model learns from, None for nothing.

        ``later`` when it gives no first token and nothing waits for an answer.
        """
        if later and self._accounts:
            if len(self._waiting) >= 2 * _MOST_STEPS:
                self._tell()
            self._tokens = []
            self._waiting.append(_Step(shape, seconds, times, self._tokens))
            return
        self.settle()
        self._tell_step(shape, seconds, times)

    def first_token(self, ttft_s: float, delay_s: float, late_s: float | None) -> None:
        """A request got its first token in that step, ``delay_s`` of it caused by offline work."""
        self.settle()
        for account in self._accounts:
            account.on_first_token(ttft_s, delay_s)
        self._tell_lateness(late_s)

    def token(self, gap_s: float, delay_s: float, late_s: float | None) -> None:
        """A request got its next token in that step."""
        self._quiet_tokens -= 1
        if self._tokens is not None:
            self._tokens.append((gap_s, delay_s, late_s))
        else:
            self._tell_token(gap_s, delay_s, late_s)

    def settle(self) -> None:
        """Tell all that waits; the next answer may be another."""
        self._quiet_tokens = -1
        self._tell()

    def _tell(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._tokens = self._waiting, [], None
        for told in waiting:
            if isinstance(told, OnlineLoad):
                self._budget.step_limit(told)
                continue
            self._tell_step(told.shape, told.seconds, told.times)
            for token in told.tokens:
                self._tell_token(*token)

    def _tell_step(self, shape: StepShape, seconds: float | None, times: StepTimes) -> None:
        if seconds is not None:
            self._model.update(shape, seconds)
        for account in self._accounts:
            account.on_step(times)

    def _tell_token(self, gap_s: float, delay_s: float, late_s: float | None) -> None:
        for account in self._accounts:
            account.on_token(gap_s, delay_s)
        self._tell_lateness(late_s)

    def _tell_lateness(self, late_s: float | None) -> None:
        if late_s is not None:
            for account in self._accounts:
                account.on_lateness(late_s)
