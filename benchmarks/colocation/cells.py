"""The SLO matrix, and the one rule by which every arm is judged against a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.colocation.setup import SloTarget
from weir_cli.loadlab.measure import Measurement

TOLERANCES_PERCENT = (5, 10, 20, 50)
BASES: dict[str, tuple[tuple[str, str], ...]] = {
    "mean-tbt": (("tbt", "mean"),),
    "p99-tbt": (("tbt", "p99"),),
    "mean-ttft": (("ttft", "mean"),),
    "p99-ttft": (("ttft", "p99"),),
    "all": (("tbt", "mean"), ("tbt", "p99"), ("ttft", "mean"), ("ttft", "p99")),
}
QUANTITIES = BASES["all"]
_TOLD = 3
_AROUND = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One entry of the matrix: which latencies are bounded, and how far above online-only."""

    slo: str
    tolerance_percent: int

    @property
    def name(self) -> str:
        """For example ``p99-tbt/20%``."""
        return f"{self.slo}/{self.tolerance_percent}%"


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """Online-only latency in seconds: each quantity's mean over repeats and spread (max − min)."""

    value_s: Mapping[tuple[str, str], float]
    spread_s: Mapping[tuple[str, str], float]

    def targets(self, cell: Cell) -> tuple[SloTarget, ...]:
        """The cell's bounds in seconds."""
        factor = 1 + cell.tolerance_percent / 100
        return tuple(
            SloTarget(
                metric=metric,
                statistic=statistic,
                threshold_s=value * factor,
                reference_s=value,
            )
            for metric, statistic in BASES[cell.slo]
            for value in [self.value_s[metric, statistic]]
        )


def all_cells() -> list[Cell]:
    """Every cell, by SLO and then tolerance."""
    return [Cell(slo=slo, tolerance_percent=t) for slo in BASES for t in TOLERANCES_PERCENT]


def quantity_s(measurement: Measurement, metric: str, statistic: str) -> float:
    """A measured latency of the online class."""
    stats = measurement.online.ttft if metric == "ttft" else measurement.online.tbt
    return stats.value_s(statistic)


def baseline_of(repeats: Sequence[Measurement]) -> Baseline:
    """Mean and spread of the online-only arm's repeats.

    Raises:
        ValueError: no repeats.
    """
    if not repeats:
        raise ValueError("the online-only arm has no runs: it is the base of every cell")
    samples = {key: [quantity_s(run, *key) for run in repeats] for key in QUANTITIES}
    return Baseline(
        value_s={key: sum(values) / len(values) for key, values in samples.items()},
        spread_s={key: max(values) - min(values) for key, values in samples.items()},
    )


def baseline_before(repeats: Sequence[Measurement], ended_s: float) -> Baseline:
    """Of the last three online-only runs before a time, which is all that an arm can be told.

    The first of all where none was before.

    Raises:
        ValueError: no repeats.
    """
    ordered = sorted(repeats, key=lambda run: run.ended_s)
    before = [run for run in ordered if run.ended_s <= ended_s]
    return baseline_of(before[-_TOLD:] or ordered[:1])


def baseline_around(repeats: Sequence[Measurement], ended_s: float) -> Baseline:
    """Of the two online-only runs before a time and the two after it, of those that there are.

    A machine's own speed drifts within minutes: one that has become slower, or faster, by a steady
    rate since the runs before has the mean of these four at that time.

    Raises:
        ValueError: no repeats.
    """
    ordered = sorted(repeats, key=lambda run: run.ended_s)
    before = [run for run in ordered if run.ended_s <= ended_s]
    return baseline_of([*before[-_AROUND:], *ordered[len(before) :][:_AROUND]])


def excess(measurement: Measurement, cell: Cell, baseline: Baseline) -> float:
    """The cell's largest measured latency over its bound, 1 or less when all hold.

    At 5% the bound is widened by the run-to-run spread of online-only, in every arm alike. A failed
    online request breaks every cell.
    """
    if measurement.online.failed or not measurement.online.requests:
        return float("inf")
    ratios = []
    for target in baseline.targets(cell):
        spread_s = baseline.spread_s[target.metric, target.statistic]
        allowed_s = target.threshold_s + (spread_s if cell.tolerance_percent == 5 else 0.0)
        ratios.append(quantity_s(measurement, target.metric, target.statistic) / allowed_s)
    return max(ratios)


def holds(measurement: Measurement, cell: Cell, baseline: Baseline) -> bool:
    """True when the run meets the cell."""
    return excess(measurement, cell, baseline) <= 1.0
