"""HyGen's SLO cells: the objective of each, the bisection, and how every arm fares in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from benchmarks.papers.ablation import NOTHING_KEPT, without
from benchmarks.papers.hygen_run import (
    CHUNKS,
    Measured,
    Setup,
    run_adaptive,
    run_aimd,
    run_constant,
    run_hygen,
    run_sarathi,
    run_sarathi_plus,
    run_weir,
)
from weir_engine.config import Metric, Slo
from weir_engine.sim.baselines import GATEWAYS
from weir_engine.sim.report import Latencies, attained
from weir_engine.sim.slo_profiler import SloProfiler, geometric_levels

ARMS = ("sarathi++", "aimd", "adaptive", "hygen*", "hygen", "hygen-next", "weir")
TOLERANCES = (0.05, 0.20, 0.50)
METRICS = (
    (Metric.TBT, "mean"),
    (Metric.TBT, "p99"),
    (Metric.TTFT, "mean"),
    (Metric.TTFT, "p99"),
)
BUDGETS_S = geometric_levels(0.015, 0.30, 12)
RATES = geometric_levels(0.02, 4.0, 20)

Cell = tuple[Metric, str, float]
CELLS: tuple[Cell, ...] = tuple((m, s, t) for m, s in METRICS for t in TOLERANCES)
Alone = dict[int, Measured]
"""Online alone at each chunk."""


def best_chunk(cell: Cell, alone: Alone) -> int:
    """The chunk at which online alone is best for the cell's statistic."""
    return min(alone, key=lambda chunk: alone[chunk].latencies.statistic(cell[0], cell[1]))


def slos_of(cell: Cell, alone: Alone) -> tuple[Slo, ...]:
    """The objective of a cell: online alone at the chunk best for it, plus the tolerance."""
    metric, statistic, tolerance = cell
    least = alone[best_chunk(cell, alone)].latencies.statistic(metric, statistic)
    return (
        Slo(
            metric=metric,
            statistic=statistic,
            threshold_s=least * (1 + tolerance),
            reference_s=least,
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """An arm in a cell for one seed. ``ratio`` is measured over objective; 1 or less holds.

    ``chunk`` and ``level`` (seconds or requests a second) are what profiling chose, if anything.
    """

    offline_s: float
    whole_s: float
    ratio: float
    chunk: int = 0
    level: float = 0.0


NOTHING = Verdict(offline_s=0.0, whole_s=0.0, ratio=1.0)


def verdict(run: Measured, slos: tuple[Slo, ...], chunk: int = 0, level: float = 0.0) -> Verdict:
    """A run against the objectives."""
    ratio = attained(run.latencies, slos)
    return Verdict(
        offline_s=run.offline_s, whole_s=run.whole_s, ratio=ratio, chunk=chunk, level=level
    )


def profiled(
    setup: Setup, arm: str, chunk: int, cells: tuple[Cell, ...], alone: Alone
) -> list[Verdict | None]:
    """For each cell the highest level that holds; None: none does.

    A chunk at which online alone misses the objective is not tried: offline work adds to it.
    """
    run, levels = {"hygen": (run_hygen, BUDGETS_S), "hygen*": (run_constant, RATES)}[arm]
    runs: dict[float, Measured] = {}

    def latencies(level: float) -> Latencies:
        runs[level] = run(setup, chunk, level, judged=False)
        return runs[level].latencies

    profiler = SloProfiler(latencies, levels)

    def best(slos: tuple[Slo, ...]) -> Verdict | None:
        if attained(alone[chunk].latencies, slos) > 1:
            return None
        level = profiler.best(slos)
        if level is None or attained(profiler.latencies(level), slos) > 1:
            return None
        return verdict(runs[level], slos, chunk, level)

    return [best(slos_of(cell, alone)) for cell in cells]


@dataclass(frozen=True, slots=True)
class Judged:
    """An arm in several cells for one seed."""

    verdicts: tuple[Verdict, ...]


def simulate(setup: Setup, arm: str, *cells: int) -> Judged:
    """An arm, Weir without a part among them, in the cells that have these places in ``CELLS``."""
    with without(arm):
        return Judged(tuple(judge(setup, tuple(CELLS[i] for i in cells), arm)))


@cache
def alone_at_each(setup: Setup, *, judged: bool) -> Alone:
    """Online alone at each chunk; every arm needs it."""
    return {chunk: run_sarathi(setup, chunk, judged=judged) for chunk in CHUNKS}


def judge(setup: Setup, cells: tuple[Cell, ...], arm: str) -> list[Verdict]:
    """An arm in every cell for one seed; those with a choice of chunks at the best one."""
    alone = alone_at_each(setup, judged=False)
    if arm in {"hygen", "hygen*"}:
        tried = [profiled(setup, arm, chunk, cells, alone) for chunk in CHUNKS]
        return [
            max((v for v in column if v), key=lambda v: v.offline_s, default=NOTHING)
            for column in zip(*tried, strict=True)
        ]
    if arm == "sarathi++":
        runs = [run_sarathi_plus(setup, chunk) for chunk in CHUNKS]
        return [_best([verdict(run, slos_of(cell, alone)) for run in runs]) for cell in cells]
    return [_single(setup, arm, cell, alone) for cell in cells]


def _single(setup: Setup, arm: str, cell: Cell, alone: Alone) -> Verdict:
    """Arms that get the objective, at the chunk at which online alone is best for it."""
    slos, chunk = slos_of(cell, alone), best_chunk(cell, alone)
    if arm in {"weir", NOTHING_KEPT}:
        return verdict(run_weir(setup, slos, chunk), slos, chunk)
    if arm == "aimd":
        runs = [run_aimd(setup, slos, chunk, gateway) for gateway in GATEWAYS]
        return _best([verdict(run, slos, chunk) for run in runs])
    least = 64 if cell[0] is Metric.TBT else 512  # fewer starve prompts, more stretch steps
    return verdict(run_adaptive(setup, slos, least), slos, CHUNKS[-1])


def judge_next(setup: Setup, cells: tuple[Cell, ...], found: list[Verdict]) -> list[Verdict]:
    """HyGen's budgets, taken as they are to the stretch after the one they were found on."""
    alone = alone_at_each(setup, judged=True)
    runs = {
        (own.chunk, own.level): run_hygen(setup, own.chunk, own.level, judged=True)
        for own in found
        if own.chunk
    }
    return [
        verdict(runs[own.chunk, own.level], slos_of(cell, alone), own.chunk, own.level)
        if own.chunk
        else NOTHING
        for cell, own in zip(cells, found, strict=True)
    ]


def _best(verdicts: list[Verdict]) -> Verdict:
    """The one that gives most among those that hold; else the one nearest to holding."""
    holding = [v for v in verdicts if v.ratio <= 1]
    if holding:
        return max(holding, key=lambda v: v.offline_s)
    return min(verdicts, key=lambda v: v.ratio)
