"""The step budget: how long a step may take, from every objective together.

Two choices fill the seat: a static limit found by profiling, and Weir's, which takes the tightest
of one account an objective.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from weir_engine.config import Metric, Slo
from weir_engine.errors import ConfigError
from weir_engine.latency.models import LatencyModel
from weir_engine.sched.account import NO_LIMIT, Account, OnlineLoad, StepLimit
from weir_engine.sched.over_alone import TbtOverAlone, TtftOverAlone
from weir_engine.sched.tbt_account import MeanTbtAccount
from weir_engine.sched.tbt_tail import TailTbtAccount
from weir_engine.sched.tpot_account import TailTpotAccount
from weir_engine.sched.ttft_account import MeanTtftAccount
from weir_engine.sched.ttft_tail import TailTtftAccount

# Where no objective bounds a step, it ends after this many fixed costs: 95% of it is work, and an
# arrival still finds the engine soon.
_LONGEST_STEPS = 20.0
# Online prefill always gets this many fixed costs over the decoders' own time: where an objective
# cannot be met, prompts must not starve for it.
_PREFILL_STEPS = 1.0
# Where only percentiles of TBT count that would itself make tokens late: no more than it takes.
_PREFILL_STEPS_OF_TBT = 0.3


class StepBudget(Protocol):
    """Says how long a step may take, and learns from what steps did."""

    def prefill_limit(self, load: OnlineLoad) -> float:
        """Longest step that online prefill may fill (predicted median, seconds)."""
        ...

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """Longest step with offline work in it."""
        ...

    @property
    def accounts(self) -> Sequence[Account]:
        """Who must be told of tokens and steps."""
        ...


class StaticBudget:
    """One limit for every step, found beforehand by bisection on the wanted statistic.

    Source: HyGen §4.2 (SLO-aware profiler) and Algorithm 1.
    """

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ConfigError(f"static budget is {seconds}: give seconds above 0")
        self._limit = StepLimit(seconds=seconds, reason="static")

    def prefill_limit(self, load: OnlineLoad) -> float:  # noqa: ARG002
        """The static limit; online prefill is chunked to it (Sarathi)."""
        return self._limit.seconds

    def step_limit(self, load: OnlineLoad) -> StepLimit:  # noqa: ARG002
        """The static limit."""
        return self._limit

    @property
    def accounts(self) -> Sequence[Account]:
        """None: it does not learn."""
        return ()


class SloBudget:
    """The tightest limit of one account an objective.

    Without an objective on what a step lengthens, ``longest_s`` ends it (default: twenty fixed
    costs, or the longest step that a percentile of TBT allows if that is more).
    ``prompt_step_s`` says how long a step full of online prompts takes by now; without it a
    percentile of TTFT bounds the whole step by what its tail can wait. ``over_alone``, for use
    without any objective, is the share by which the means of TBT and TTFT may be above what they
    would be without offline work (see ``over_alone.py``). ``tpot_from_arrival``: percentiles of
    TPOT count from arrival plus the objective on TTFT, as Echo's do.

    Source: design §3, "How a budget becomes a step".
    """

    def __init__(
        self,
        slos: Sequence[Slo],
        model: LatencyModel,
        *,
        longest_s: float | None = None,
        prompt_step_s: Callable[[], float] | None = None,
        over_alone: float | None = None,
        tpot_from_arrival: bool = False,
    ) -> None:
        ttft_s = min((s.threshold_s for s in slos if s.metric is Metric.TTFT), default=None)
        self.tpot_from_arrival = tpot_from_arrival and ttft_s is not None
        tpot_after_s = ttft_s if tpot_from_arrival else None
        self._accounts: dict[Slo, Account] = {
            slo: _account(slo, slos, model, prompt_step_s, tpot_after_s) for slo in slos
        }
        self._ordered = tuple(self._accounts.values())
        if over_alone is not None and not slos:
            self._ordered = (
                TbtOverAlone(over_alone),
                TtftOverAlone(over_alone, fixed_s=model.fixed_s),
            )
        self._longest_s = longest_s
        only_tbt = all(slo.metric is Metric.TBT and not slo.is_mean for slo in slos)
        self._prefill_steps = _PREFILL_STEPS_OF_TBT if slos and only_tbt else _PREFILL_STEPS
        self._tail_s = min(
            (s.threshold_s for s in slos if s.metric is not Metric.TTFT and not s.is_mean),
            default=0.0,
        )

    @property
    def accounts(self) -> Sequence[Account]:
        """One an objective, in the order given."""
        return self._ordered

    def set_client_delay(self, delay_s: dict[str, float]) -> None:
        """Takes measured delays between engine and client, by ``Slo.name``.

        A percentile's may be many times a mean's.
        """
        for slo, account in self._accounts.items():
            account.set_client_delay(delay_s.get(slo.name, 0.0))

    def prefill_limit(self, load: OnlineLoad) -> float:
        """The tightest, with some room kept for prefill whatever the decoders take."""
        limit_s = min((a.prefill_limit(load) for a in self._ordered), default=inf)
        return max(limit_s, load.base_s + self._prefill_steps * load.idle_step_s)

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """The tightest, from savings where any of them is; ties go to the objective named first.

        It leaves nothing for as long as any of them does.
        """
        longest_s = self._longest_s or max(self._tail_s, _LONGEST_STEPS * load.idle_step_s)
        tightest = StepLimit(seconds=longest_s, reason="longest") if longest_s > 0 else NO_LIMIT
        from_savings, tokens = False, 0
        for account in self._ordered:
            limit = account.step_limit(load)
            from_savings |= limit.from_savings
            tokens = max(tokens, limit.tokens)
            if limit.seconds < tightest.seconds:
                tightest = limit
        if from_savings or tokens != tightest.tokens:
            return tightest._replace(from_savings=from_savings, tokens=tokens)
        return tightest


def _account(
    slo: Slo,
    slos: Sequence[Slo],
    model: LatencyModel,
    prompt_step_s: Callable[[], float] | None,
    tpot_after_s: float | None,
) -> Account:
    if slo.metric is Metric.TTFT:
        if slo.is_mean:
            return MeanTtftAccount(slo)
        return TailTtftAccount(slo, prompt_step_s=prompt_step_s)
    if slo.is_mean:  # a mean TPOT is the mean TBT, weighted by request instead of by token
        return MeanTbtAccount(slo)
    if slo.metric is Metric.TBT:
        whole_prefill = any(other.metric is Metric.TTFT for other in slos)
        tail_s = min(
            (s.threshold_s for s in slos if s.metric is Metric.TTFT and not s.is_mean), default=None
        )
        return TailTbtAccount(slo, model, whole_prefill=whole_prefill, ttft_tail_s=tail_s)
    return TailTpotAccount(slo, model, ttft_s=tpot_after_s)
