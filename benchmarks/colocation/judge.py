"""Who meets which cell, and with how many offline tokens. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.colocation.arms import Run
from benchmarks.colocation.bound import Bound
from benchmarks.colocation.cells import (
    Baseline,
    Cell,
    baseline_around,
    baseline_before,
    baseline_of,
    excess,
)
from weir_cli.loadlab.measure import Measurement

STATIC_KINDS = ("static-", "fixed-", "stock-")
GATEWAY_KIND = "aimd"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A mean over repeats with its range."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One arm in one cell; ``excess`` over 1 means that the SLO is missed.

    It is over the bounds that each run was told, or would have been had anybody told it;
    ``of_both_sides`` over those by the online-only runs before and after it, which nobody could
    have told: where the two differ the machine itself became slower or faster.
    """

    arm: str
    excess: Figure
    of_both_sides: Figure
    served: Figure
    computed: Figure
    hit_rate: float

    @property
    def holds(self) -> bool:
        """The mean over repeats meets the cell."""
        return self.excess.mean <= 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CellResult:
    """All arms in one cell; ``bound_per_s`` where the cell bounds P99 TBT, else None."""

    workload: str
    cell: Cell
    thresholds_s: Mapping[str, float]
    verdicts: Mapping[str, Verdict]
    bound_per_s: float | None

    def best_static(self, *, holding: bool = True) -> Verdict | None:
        """The arm with the most served tokens among those that are not told the SLO.

        With ``holding`` among those that meet it.
        """
        return self._most_served(STATIC_KINDS, holding=holding)

    def best_gateway(self) -> Verdict | None:
        """The AIMD arm with the most served tokens among those that meet the SLO.

        Of all where none does.
        """
        best = self._most_served(GATEWAY_KIND, holding=True)
        return best or self._most_served(GATEWAY_KIND, holding=False)

    def _most_served(self, kinds: str | tuple[str, ...], *, holding: bool) -> Verdict | None:
        chosen = [
            verdict
            for name, verdict in self.verdicts.items()
            if name.startswith(kinds) and (verdict.holds or not holding)
        ]
        return max(chosen, key=lambda verdict: verdict.served.mean, default=None)


Results = Mapping[Run, Measurement]


def figure(values: Sequence[float]) -> Figure:
    """Mean and range."""
    return Figure(mean=sum(values) / len(values), low=min(values), high=max(values))


def runs_of(
    results: Results, workload: str, arm: str, cell: Cell | None = None
) -> list[Measurement]:
    """The repeats of an arm."""
    return [
        measurement
        for run, measurement in results.items()
        if run.workload == workload
        and run.arm.name == arm
        and (run.cell == cell or not run.arm.per_cell)
    ]


def judge(
    results: Results, workload: str, cell: Cell, base: Sequence[Measurement], bound: Bound | None
) -> CellResult:
    """Every co-location arm of a workload in a cell; ``base``: the online-only arm's repeats.

    ``thresholds_s`` are over all repeats.
    """
    names = [
        run.arm.name
        for run in results
        if run.workload == workload and run.arm.online and run.arm.order is not None
    ]
    verdicts = {}
    for name in dict.fromkeys(names):
        measured = runs_of(results, workload, name, cell)
        if measured:
            verdicts[name] = _verdict(name, measured, cell, base)
    targets = baseline_of(base).targets(cell)
    tail_s = [t.threshold_s for t in targets if (t.metric, t.statistic) == ("tbt", "p99")]
    return CellResult(
        workload=workload,
        cell=cell,
        thresholds_s={f"{t.statistic} {t.metric}": t.threshold_s for t in targets},
        verdicts=verdicts,
        bound_per_s=bound.tokens_per_s(tail_s[0]) if bound and tail_s else None,
    )


def _verdict(
    name: str, measured: Sequence[Measurement], cell: Cell, base: Sequence[Measurement]
) -> Verdict:
    def over(runs_near: Callable[[Sequence[Measurement], float], Baseline]) -> Figure:
        ratios = [excess(run, cell, runs_near(base, run.ended_s)) for run in measured]
        return figure([min(1e3, ratio) for ratio in ratios])

    return Verdict(
        arm=name,
        excess=over(baseline_before),
        of_both_sides=over(baseline_around),
        served=figure([run.offline_served_per_s for run in measured]),
        computed=figure([run.offline_computed_per_s for run in measured]),
        hit_rate=figure([run.online_hit_rate for run in measured]).mean,
    )
