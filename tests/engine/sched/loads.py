"""Objectives and online loads, as tests of accounts ask for them."""

from typing import Any

from weir_engine.config import Metric, Slo
from weir_engine.sched.account import OnlineLoad


def slo(
    metric: Metric, statistic: str, threshold_s: float, reference_s: float | None = None
) -> Slo:
    """An objective, by position."""
    return Slo(metric=metric, statistic=statistic, threshold_s=threshold_s, reference_s=reference_s)


def load(now_s: float = 0.0, **fields: Any) -> OnlineLoad:  # noqa: ANN401 - any field of it
    """The online load of a step whose fixed cost is 10 ms."""
    return OnlineLoad(now_s=now_s, idle_step_s=0.01, **fields)
