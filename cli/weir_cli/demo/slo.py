"""The demo's SLO: online latency alone plus a tolerance; and what an arm makes of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from weir_cli.loadlab.measure import Measurement

OBJECTIVES = (("ttft", "mean"), ("ttft", "p99"), ("tbt", "mean"), ("tbt", "p99"))


@dataclass(frozen=True, kw_only=True)
class Objective:
    """One latency objective: the statistic of a metric stays at or below ``threshold_s``.

    ``reference_s`` is what online traffic alone has.
    """

    metric: str
    statistic: str
    threshold_s: float
    reference_s: float

    def measured_s(self, measurement: Measurement) -> float:
        """What a measurement says about it; nan without samples."""
        stats = measurement.online.ttft if self.metric == "ttft" else measurement.online.tbt
        return stats.value_s(self.statistic)

    def as_setting(self) -> dict[str, str | float]:
        """One entry of the agent's setting."""
        return {
            "metric": self.metric,
            "statistic": self.statistic,
            "threshold_s": self.threshold_s,
            "reference_s": self.reference_s,
        }


def objectives(alone: Measurement, *, tolerance: float) -> list[Objective]:
    """All four objectives at ``tolerance`` (0.5 is 50%) over online traffic alone."""
    plain = [
        Objective(metric=m, statistic=s, threshold_s=0.0, reference_s=0.0) for m, s in OBJECTIVES
    ]
    measured = [(objective, objective.measured_s(alone)) for objective in plain]
    return [
        Objective(
            metric=objective.metric,
            statistic=objective.statistic,
            threshold_s=value_s * (1 + tolerance),
            reference_s=value_s,
        )
        for objective, value_s in measured
        if not isnan(value_s) and value_s > 0
    ]


def unanswered(measurement: Measurement) -> str:
    """How many online requests had no answer, which no percentile says; nothing where all had."""
    online = measurement.online
    return f"{online.failed} of {online.requests} requests not answered" if online.failed else ""


def verdict(measurement: Measurement, wanted: Sequence[Objective]) -> str:
    """Says that the SLO holds, or which objectives are missed and by how much.

    Without objectives it says who was not answered.
    """
    missed = [missing] if (missing := unanswered(measurement)) else []
    if not wanted:
        return ", ".join(missed)
    for objective in wanted:
        value_s = objective.measured_s(measurement)
        if isnan(value_s) or value_s > objective.threshold_s:
            factor = "no answer" if isnan(value_s) else f"{value_s / objective.threshold_s:.3g}x"
            missed.append(f"{objective.metric.upper()} {objective.statistic} {factor}")
    return f"over the SLO: {', '.join(missed)}" if missed else "holds the SLO"
