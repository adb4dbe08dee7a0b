"""HyGen in the simulator: SLO cells, HyGen against HyGen*, Sarathi++, AIMD and Weir.

Set-up of the paper: Llama-2-7B on an A100 40 GB, Azure conversations sampled to a rate, arXiv
lengths all at once. Budget and rate are bisected on a stretch of the trace that is also judged, as
in the paper; what the budget does on the stretch after it is reported beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.claims import Claim
from benchmarks.papers.paper import Options, PaperResult, Table, kept, parallel, read_rows, spread
from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.ids import RequestClass, RequestId
from weir_engine.kv.eviction import LruEviction
from weir_engine.kv.manager import KvManager
from weir_engine.sim.adaptive_prefill import AdaptivePrefill, AdaptiveSettings
from weir_engine.sim.baselines import AimdSettings, AimdWindow, StockScheduler
from weir_engine.sim.preset_run import run_preset
from weir_engine.sim.profile_cost import ProfileCost
from weir_engine.sim.profiles import load_profile
from weir_engine.sim.records import SimResult
from weir_engine.sim.replica import Replica
from weir_engine.sim.report import Latencies, attained
from weir_engine.sim.slo_profiler import SloProfiler, geometric_levels
from weir_engine.sim.workload import RequestSpec, Segment, online_from_rows

CHUNKS = (256, 512, 1024, 2048)
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
_RAMP_S = 15.0
_DRAIN_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """One seed on one profile: its trace, a stretch to profile and judge, and the one after."""

    profile: str
    data: Path
    rate_s: float
    window_s: float
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One run in its window."""

    latencies: Latencies
    offline_s: float
    online_s: float

    @property
    def whole_s(self) -> float:
        """Tokens a second of both classes."""
        return self.offline_s + self.online_s


def online_of(setup: Setup, *, judged: bool) -> tuple[RequestSpec, ...]:
    """The stretch of the Azure trace, thinned at random to the rate."""
    rows = read_rows(
        setup.data / "azure2023/conv.csv.gz", ("arrival_s", "input_tokens", "output_tokens")
    )
    length_s = _RAMP_S + setup.window_s
    # Each seed has its own two stretches, one after the other, from the whole hour.
    start_s = (setup.seed - 1) * 2 * length_s + (length_s if judged else 0.0)
    inside = [row for row in rows if start_s <= row[0] < start_s + length_s]
    rng = np.random.default_rng((setup.seed, 20, int(judged)))
    wanted = min(len(inside), round(setup.rate_s * length_s))
    kept = sorted(rng.choice(len(inside), size=wanted, replace=False).tolist())
    return online_from_rows(
        [(inside[i][0] - start_s, int(inside[i][1]), max(int(inside[i][2]), 1)) for i in kept]
    )


def offline_of(setup: Setup) -> tuple[RequestSpec, ...]:
    """ArXiv summarisation, in random order, more than a window can serve."""
    rows = read_rows(
        setup.data / "lengths/arxiv_summarization.csv.gz", ("input_tokens", "output_tokens")
    )
    rng = np.random.default_rng((setup.seed, 21))
    chosen = rng.choice(len(rows), size=min(len(rows), 6000), replace=False).tolist()
    return tuple(
        RequestSpec(
            id=RequestId(f"off-{i}"),
            klass=RequestClass.OFFLINE,
            arrival_s=0.0,
            segments=(Segment(key=f"off-{i}", tokens=int(rows[i][0])),),
            output_tokens=max(int(rows[i][1]), 1),
        )
        for i in chosen
    )


def replica_of(setup: Setup, chunk: int, slos: tuple[Slo, ...] = ()) -> Replica:
    """The engine of the set-up; offline work may have nine tenths of its KV."""
    profile = load_profile(setup.profile)
    shape = profile.engine_shape(max_batched_tokens=chunk, max_seqs=128)
    return Replica(
        cost=ProfileCost(profile=profile),
        shape=shape,
        slos=slos,
        policy=Policy(
            offline_kv_blocks=shape.total_blocks * 9 // 10, offline_seq_slots=shape.max_seqs // 2
        ),
        seed=setup.seed,
        eviction=LruEviction(),
    )


def measured(setup: Setup, result: SimResult) -> Measured:
    """A run's online latencies and tokens a second of both classes, after the ramp."""
    end_s = _RAMP_S + setup.window_s
    steps = [step for step in result.steps if _RAMP_S < step.ended_s <= end_s]
    online = [r for r in result.online if _RAMP_S <= r.arrival_s < end_s]
    return Measured(
        latencies=Latencies.of(online),
        offline_s=sum(step.offline_served_tokens for step in steps) / setup.window_s,
        online_s=sum(step.online_tokens for step in steps) / setup.window_s,
    )


def _until_s(setup: Setup) -> float:
    return _RAMP_S + setup.window_s + _DRAIN_S


def run_sarathi(setup: Setup, chunk: int, *, judged: bool) -> Measured:
    """Online alone."""
    result = replica_of(setup, chunk).simulate(
        online=online_of(setup, judged=judged),
        until_s=_until_s(setup),
        planner=partial(_stock, chunk, fixed=False),
    )
    return measured(setup, result)


def _stock(chunk: int, shape: EngineShape, kv: KvManager, *, fixed: bool) -> StockScheduler:
    return StockScheduler(shape, kv, step_tokens=chunk, fixed=fixed)


def run_hygen(setup: Setup, chunk: int, budget_s: float, *, judged: bool) -> Measured:
    """HyGen under a static step budget."""
    result = run_preset(
        replica_of(setup, chunk),
        "hygen",
        online=online_of(setup, judged=judged),
        offline=offline_of(setup),
        until_s=_until_s(setup),
        static_budget_s=budget_s,
    )
    return measured(setup, result)


def run_constant(setup: Setup, chunk: int, rate_s: float, *, judged: bool) -> Measured:
    """HyGen*: Sarathi++ with offline requests admitted at a constant rate."""
    end_s = _until_s(setup)
    offline = [
        replace(spec, arrival_s=i / rate_s)
        for i, spec in enumerate(offline_of(setup))
        if i / rate_s < end_s
    ]
    online = online_of(setup, judged=judged)
    result = run_preset(
        replica_of(setup, chunk),
        "sarathi",
        online=tuple(sorted((*online, *offline), key=lambda spec: (spec.arrival_s, spec.id))),
        until_s=end_s,
    )
    return measured(setup, result)


def run_sarathi_plus(setup: Setup, chunk: int) -> Measured:
    """Sarathi++: both classes, no budget."""
    result = run_preset(
        replica_of(setup, chunk),
        "sarathi",
        online=online_of(setup, judged=False),
        offline=offline_of(setup),
        until_s=_until_s(setup),
    )
    return measured(setup, result)


def run_weir(setup: Setup, slos: tuple[Slo, ...], chunk: int) -> Measured:
    """Weir with the cell's objectives."""
    result = run_preset(
        replica_of(setup, chunk, slos),
        "weir",
        online=online_of(setup, judged=False),
        offline=offline_of(setup),
        until_s=_until_s(setup),
    )
    return measured(setup, result)


def run_adaptive(setup: Setup, slos: tuple[Slo, ...], least: int) -> Measured:
    """Fixed priority with an adaptive prefill budget of ``least`` tokens or more."""
    settings = AdaptiveSettings(least=least, most=CHUNKS[-1])

    def make(shape: EngineShape, kv: KvManager) -> AdaptivePrefill:
        return AdaptivePrefill(shape, kv, slos=slos, settings=settings)

    result = replica_of(setup, CHUNKS[-1]).simulate(
        online=online_of(setup, judged=False),
        offline=offline_of(setup),
        until_s=_until_s(setup),
        planner=make,
    )
    return measured(setup, result)


def run_aimd(setup: Setup, slos: tuple[Slo, ...], chunk: int) -> Measured:
    """Fixed priority fed by a gateway whose concurrency follows the objectives."""
    result = replica_of(setup, chunk).simulate(
        online=online_of(setup, judged=False),
        offline=AimdWindow(offline_of(setup), slos=slos, settings=AimdSettings()),
        until_s=_until_s(setup),
        planner=partial(_stock, chunk, fixed=True),
    )
    return measured(setup, result)


# -- profiling and judging --------------------------------------------------------------------

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
    if arm == "weir":
        return verdict(run_weir(setup, slos, chunk), slos, chunk)
    if arm == "aimd":
        return verdict(run_aimd(setup, slos, chunk), slos, chunk)
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


# -- claims -----------------------------------------------------------------------------------

Rows = list[list[dict[str, Verdict]]]  # seed, cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """One profile at one online rate, and the cells it is judged in."""

    profile: str
    rate_s: float
    cells: tuple[Cell, ...]
    seeds: int = 3

    @property
    def name(self) -> str:
        """Profile and rate."""
        return f"{self.profile}@{self.rate_s:g}"

    @property
    def is_main(self) -> bool:
        """Whether the paper's headlines are judged on it."""
        return self is STUDIES[0]


_TIGHT = tuple(cell for cell in CELLS if cell[2] == TOLERANCES[0])
STUDIES = (
    Study(profile="a100-40gb-llama-2-7b", rate_s=1.0, cells=CELLS),
    Study(profile="rtx-pro-6000-llama-3.1-8b", rate_s=4.0, cells=_TIGHT, seeds=2),
    Study(profile="a100-40gb-llama-2-7b", rate_s=0.5, cells=_TIGHT, seeds=1),
)


def run(options: Options) -> PaperResult:
    """The paper's profile at its main rate, RTX PRO 6000 beside it, and a sweep of the rate."""
    claims: list[Claim] = []
    tables: list[Table] = []
    notes: list[str] = []
    for study in STUDIES[:1] if options.quick else STUDIES:
        if options.only and study.name not in options.only:
            continue
        rows = [_seed(study, seed, options) for seed in options.seeds[: study.seeds]]
        claims += claims_of(study, rows)
        notes += notes_of(study, rows)
        tables.append(table_of(study, rows))
    return PaperResult(claims=tuple(claims), notes=tuple(notes), tables=tuple(tables))


def run_arm(cell: tuple[Options, Study, Setup, str]) -> list[dict[str, Any]]:
    """One arm for one seed, as JSON has it; kept where the options say so."""
    options, study, setup, arm = cell

    def make() -> list[dict[str, Any]]:
        if arm == "hygen-next":
            found = [Verdict(**own) for own in run_arm((options, study, setup, "hygen"))]
            return [asdict(own) for own in judge_next(setup, study.cells, found)]
        return [asdict(own) for own in judge(setup, study.cells, arm)]

    part = f"{study.name}-{setup.seed}-{arm.replace('*', '-rate')}"
    verdicts: list[dict[str, Any]] = kept(options, "hygen", part, make)
    return verdicts


def _seed(study: Study, seed: int, options: Options) -> list[dict[str, Verdict]]:
    setup = Setup(
        profile=study.profile,
        data=options.data,
        rate_s=study.rate_s,
        window_s=60.0 if options.quick else 120.0,
        seed=seed,
    )
    arms = [arm for arm in ARMS if arm != "hygen-next"]
    columns = parallel(options, run_arm, [(options, study, setup, arm) for arm in arms])
    columns.append(run_arm((options, study, setup, "hygen-next")))  # it needs what hygen found
    named = list(zip([*arms, "hygen-next"], columns, strict=True))
    return [{arm: Verdict(**column[i]) for arm, column in named} for i in range(len(study.cells))]


def _gain(row: dict[str, Verdict], of: str, over: str, what: str) -> float | None:
    base = getattr(row[over], what)
    return float(getattr(row[of], what) / base) if base > 0 else None


def _gains(rows: Rows, of: str, over: str, what: str) -> list[list[float]]:
    """By seed: the gain in each cell where both have a figure."""
    return [
        [gain for row in seed if (gain := _gain(row, of, over, what)) is not None] for seed in rows
    ]


def _each(seeds: list[list[float]], function: Callable[[list[float]], float]) -> list[float]:
    return [function(gains) for gains in seeds if gains]


def claims_of(study: Study, rows: Rows) -> list[Claim]:
    """The headlines of one study; only the main one has the paper's targets."""
    paper, cells = study.is_main, study.cells
    at = "hygen/" if paper else f"hygen/{study.name.replace('@', '/')}/"
    where = "" if paper else f" ({study.name}/s)"
    offline = _gains(rows, "hygen", "hygen*", "offline_s")
    whole = _gains(rows, "hygen", "hygen*", "whole_s")
    held = [sum(row["hygen"].ratio <= 1 for row in seed) / len(cells) for seed in rows]
    later = [sum(row["hygen-next"].ratio <= 1 for row in seed) / len(cells) for seed in rows]
    weir = [sum(row["weir"].ratio <= 1 for row in seed) / len(cells) for seed in rows]
    gains = _gains(rows, "weir", "hygen", "offline_s")
    return [
        spread(
            f"{at}offline-gain-largest",
            f"offline tokens/s of HyGen over HyGen*, largest cell{where}",
            "times",
            _each(offline, max),
            ">= 5.84" if paper else None,
        ),
        spread(
            f"{at}offline-gain-median",
            f"the same, median cell{where}",
            "times",
            _each(offline, median),
        ),
        spread(
            f"{at}offline-gain-smallest",
            f"the same, smallest cell{where}",
            "times",
            _each(offline, min),
        ),
        spread(
            f"{at}overall-gain-largest",
            f"tokens/s of both classes, HyGen over HyGen*, largest cell{where}",
            "times",
            _each(whole, max),
            ">= 3.87" if paper else None,
        ),
        spread(f"{at}cells-held", f"SLO cells that HyGen holds{where}", "share", held, ">= 1"),
        spread(
            f"{at}cells-held-next",
            f"the same with each budget taken to the next stretch of the trace{where}",
            "share",
            later,
        ),
        spread(
            f"weir/{at}cells-held",
            f"SLO cells that Weir holds{where}",
            "share",
            weir,
            ">= 1",
        ),
        spread(
            f"weir/{at}offline-gain-median",
            f"offline tokens/s of Weir over HyGen, median cell{where}",
            "times",
            _each(gains, median),
            ">= 1",
        ),
        spread(
            f"weir/{at}offline-gain-smallest",
            f"the same, smallest cell{where}",
            "times",
            _each(gains, min),
            ">= 1",
        ),
    ]


def notes_of(study: Study, rows: Rows) -> list[str]:
    """What was not reached, and by how much."""
    found, cells = [], study.cells
    for arm in ("hygen", "weir"):
        missed = [
            f"{_name(cell)} by {fmean(over):.1%}"
            for i, cell in enumerate(cells)
            if (over := [s[i][arm].ratio - 1 for s in rows if s[i][arm].ratio > 1])
        ]
        if missed:
            found.append(
                f"**{arm} on {study.name}/s misses on at least one seed:** {', '.join(missed)}."
            )
    return found


def _name(cell: Cell) -> str:
    return f"{cell[1]} {cell[0].value.upper()} +{cell[2]:.0%}"


def table_of(study: Study, rows: Rows) -> Table:
    """Offline tokens/s of every arm in every cell; brackets: missed on some seed."""
    cells = study.cells

    def shown(i: int, arm: str) -> str:
        own = [seed[i][arm] for seed in rows]
        text = f"{fmean(v.offline_s for v in own):,.0f}"
        missed = sum(v.ratio > 1 for v in own)
        return f"[{text}] {missed}/{len(own)}" if missed else text

    return Table(
        title=f"{study.name}/s, seeds: {len(rows)}. Offline tokens/s; in brackets where it misses, "
        "on how many seeds",
        header=("SLO over online alone", *ARMS),
        rows=tuple((_name(cell), *(shown(i, arm) for arm in ARMS)) for i, cell in enumerate(cells)),
    )
