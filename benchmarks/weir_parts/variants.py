"""Preset `weir` without one of its ideas, or with another in its place: patches, by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any
from unittest.mock import patch

from typing_extensions import override

from benchmarks.weir_parts.traces import TRACES
from benchmarks.weir_parts.victims import LatestFirst, ShortestTailFirst
from weir_engine.config import Metric, Slo
from weir_engine.presets import SEATS
from weir_engine.sched import budget, making_room, tbt_account, tbt_tail
from weir_engine.sched.account import OnlineLoad, QuietAccount, StepLimit

OBJECTIVES = {
    "p99-tbt": ((Metric.TBT, "p99"),),
    "mean-tbt": ((Metric.TBT, "mean"),),
}


class EvenMeanAccount(QuietAccount):
    """A mean of TBT without a bank: every step may be longer by the tolerance."""

    def __init__(self, slo: Slo) -> None:
        self._extra_s = slo.tolerance_s or 0.0

    @override
    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """The online work's own time plus the tolerance."""
        return StepLimit(seconds=load.base_s + self._extra_s if load.decoders else inf)


class KneeMeanAccount(tbt_account.MeanTbtAccount):
    """Lets in what lengthens the step by no more than a hundredth, whatever the bank holds."""

    @override
    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """The bank's limit, or a hundredth over the online work."""
        limit = super().step_limit(load)
        return limit._replace(seconds=max(limit.seconds, load.base_s * 1.01))


class NoFeedback:
    """A factor that stays."""

    factor = 1.0

    def __init__(self, **_: float) -> None:
        pass

    def observe(self, *, over: bool) -> None:
        """Makes no difference."""

    def end_step(self) -> None:
        """Makes no difference."""


def _model(name: str) -> Any:  # noqa: ANN401 - a patcher
    return patch.dict(SEATS, weir=replace(SEATS["weir"], model=name))


_PREEMPTING = ("victims-tail", "victims-last")  # on traces that are short of blocks only
Patches = tuple[Callable[[], Any], ...]
VARIANTS: dict[str, Patches] = {
    "weir": (nullcontext,),
    "even-mean": (partial(patch.object, budget, "MeanTbtAccount", EvenMeanAccount),),
    "no-feedback": (partial(patch.object, tbt_tail, "TailFeedback", NoFeedback),),
    "median-guard": (partial(patch.object, tbt_tail, "guard_quantile", lambda _: 0.5),),
    "q95-guard": (partial(patch.object, tbt_tail, "guard_quantile", lambda _: 0.95),),
    "modulewise": (partial(_model, "modulewise"),),
    "knee": (
        partial(_model, "modulewise"),
        partial(patch.object, budget, "MeanTbtAccount", KneeMeanAccount),
    ),
    "knee-linear": (partial(patch.object, budget, "MeanTbtAccount", KneeMeanAccount),),
    "victims-tail": (partial(patch.object, making_room, "Displaceable", ShortestTailFirst),),
    "victims-last": (partial(patch.object, making_room, "Displaceable", LatestFirst),),
    "no-deadlines": (nullcontext,),
    "fixed-threshold": (nullcontext,),
}
_MODULEWISE = ("modulewise", "knee")  # their model has to be profiled: slow, so on one trace
_ONLY = {  # variants that differ under one objective alone
    "even-mean": "mean-tbt",
    "knee": "mean-tbt",
    "knee-linear": "mean-tbt",
    "no-feedback": "p99-tbt",
    "median-guard": "p99-tbt",
    "q95-guard": "p99-tbt",
    "no-deadlines": "p99-tbt",
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A variant on a trace under an objective."""

    trace: str
    objective: str
    variant: str


def cells() -> list[Cell]:
    """Every comparison, the whole preset first."""
    return [
        Cell(trace=trace, objective=objective, variant=variant)
        for trace in TRACES
        for objective in OBJECTIVES
        for variant in VARIANTS
        if _ONLY.get(variant, objective) == objective
        and (variant not in _PREEMPTING or TRACES[trace].total_blocks is not None)
        and (variant not in _MODULEWISE or trace == "azure")
    ]
