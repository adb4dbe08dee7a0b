"""The SLO matrix in virtual time: what holds, how many offline tokens/s, what a bound allows.

Run: python benchmarks/sim_matrix.py [--trace NAME ...] [--slo NAME ...] [--seconds N]
"""

import argparse
import json
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "node_agent"))

from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.kv.eviction import ClassedEviction, LruEviction
from weir_engine.kv.manager import KvManager
from weir_engine.sim.baselines import AimdSettings, AimdWindow, StockScheduler
from weir_engine.sim.cost import CPU_2_CORES, GPU_LIKE, CostModel
from weir_engine.sim.replica import SMALL_CPU, PlannerFactory, Replica
from weir_engine.sim.report import Summary, attained, bound, summarise
from weir_engine.sim.workload import (
    Documents,
    Lengths,
    RequestSpec,
    Turns,
    bursty_times,
    conversations,
    document_questions,
    online_requests,
    poisson_times,
)

RAMP_S = 20.0
TOLERANCES = (0.05, 0.10, 0.20, 0.50)
STATIC_ARMS = tuple(f"fixed:{n}" for n in (16, 32, 64, 96, 128, 192, 256, 512, 2048))
OBJECTIVES: dict[str, tuple[tuple[Metric, str], ...]] = {
    "tbt-mean": ((Metric.TBT, "mean"),),
    "tbt-p99": ((Metric.TBT, "p99"),),
    "ttft-mean": ((Metric.TTFT, "mean"),),
    "ttft-p99": ((Metric.TTFT, "p99"),),
    "all": (
        (Metric.TBT, "mean"),
        (Metric.TBT, "p99"),
        (Metric.TTFT, "mean"),
        (Metric.TTFT, "p99"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One online load and one offline set on one machine."""

    cost: CostModel
    shape: EngineShape
    rate_s: float
    prompt: Lengths
    output: Lengths
    documents: Documents
    burst: float | None = None
    turns: Turns | None = None
    guard_blocks: int = 0


_SHORT = Lengths(median=100, sigma=1.0, low=8, high=2000)
_DOCUMENTS = Documents(
    count=40,
    questions=15,
    document=Lengths(median=1500, sigma=0.1, low=1000, high=2200),
    question=Lengths(median=40, sigma=0.3, low=10, high=120),
    output=Lengths(median=24, sigma=0.4, low=4, high=96),
)
_BIG = EngineShape(
    block_size_tokens=16,
    total_blocks=16_000,
    max_batched_tokens=8192,
    max_seqs=256,
    max_model_len_tokens=8192,
)
TRACES = {
    "steady": Trace(
        cost=CPU_2_CORES,
        shape=SMALL_CPU,
        rate_s=1.5,
        prompt=_SHORT,
        output=Lengths(median=28, sigma=0.6, low=4, high=128),
        documents=_DOCUMENTS,
    ),
    "bursty": Trace(
        cost=CPU_2_CORES,
        shape=SMALL_CPU,
        rate_s=1.2,
        prompt=replace(_SHORT, median=60),
        output=Lengths(median=40, sigma=0.6, low=4, high=200),
        documents=replace(
            _DOCUMENTS, questions=6, document=Lengths(median=800, sigma=0.4, low=200, high=2000)
        ),
        burst=5.0,
    ),
    "long": Trace(
        cost=CPU_2_CORES,
        shape=SMALL_CPU,
        rate_s=0.6,
        prompt=replace(_SHORT, median=50),
        output=Lengths(median=200, sigma=0.5, low=50, high=600),
        documents=replace(_DOCUMENTS, output=Lengths(median=120, sigma=0.4, low=20, high=400)),
    ),
    "pressure": Trace(
        cost=CPU_2_CORES,
        shape=SMALL_CPU,
        rate_s=0.2,
        prompt=_SHORT,
        output=_SHORT,
        documents=replace(_DOCUMENTS, questions=8),
        turns=Turns(
            count=8,
            gap_s=15.0,
            message=Lengths(median=80, sigma=0.7, low=10, high=400),
            output=Lengths(median=30, sigma=0.5, low=4, high=100),
            longest_tokens=3000,
        ),
        guard_blocks=300,
    ),
    "gpu": Trace(
        cost=GPU_LIKE,
        shape=_BIG,
        rate_s=3.0,
        prompt=Lengths(median=500, sigma=1.0, low=20, high=4000),
        output=Lengths(median=150, sigma=0.6, low=10, high=600),
        documents=replace(
            _DOCUMENTS,
            count=100,
            questions=4,
            document=Lengths(median=3000, sigma=0.3, low=500, high=6000),
            question=Lengths(median=200, sigma=0.5, low=20, high=1000),
            output=Lengths(median=100, sigma=0.5, low=10, high=400),
        ),
    ),
}


def online_of(trace: Trace, seconds: float, seed: int) -> tuple[RequestSpec, ...]:
    """The online arrivals of a trace."""
    rng = np.random.default_rng((seed, 10))
    if trace.burst is None:
        times = poisson_times(rng, rate_s=trace.rate_s, duration_s=seconds)
    else:
        times = bursty_times(
            rng, rate_s=trace.rate_s, duration_s=seconds, burst=trace.burst, period_s=30.0
        )
    if trace.turns is not None:
        return conversations(rng, times, turns=trace.turns)
    return online_requests(rng, times, prompt=trace.prompt, output=trace.output)


def offline_of(trace: Trace, seconds: float, seed: int) -> tuple[RequestSpec, ...]:
    """More offline requests than the run can finish, as the control plane sends them: by prefix."""
    rng = np.random.default_rng((seed, 11))
    per_s = 60 if trace.shape is _BIG else 12
    count = max(trace.documents.count, int(per_s * seconds / trace.documents.questions))
    specs = document_questions(rng, replace(trace.documents, count=count))
    return tuple(sorted(specs, key=lambda spec: (spec.group or "", spec.id)))


def policy_of(trace: Trace) -> Policy:
    """A policy that lets offline work have nine tenths of the blocks and half the slots."""
    shape = trace.shape
    return Policy(
        offline_kv_blocks=shape.total_blocks * 9 // 10, offline_seq_slots=shape.max_seqs // 2
    )


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of the matrix."""

    trace: str
    slos: tuple[Slo, ...]
    online: bool
    offline: bool
    seconds: float
    seed: int
    model: str = "attention"
    arm: str = "weir"


def run(cell: Cell) -> Summary:
    """Simulate a cell. Arms: weir, static:TOKENS, fixed:TOKENS, fcfs:TOKENS, aimd."""
    trace = TRACES[cell.trace]
    replica = Replica(
        cost=trace.cost,
        shape=trace.shape,
        slos=cell.slos,
        policy=policy_of(trace)
        if cell.offline
        else Policy(offline_kv_blocks=0, offline_seq_slots=0),
        model=cell.model,
        seed=cell.seed,
        eviction=ClassedEviction(guard_online=True) if cell.arm == "weir" else LruEviction(),
        guard_blocks=trace.guard_blocks if cell.arm == "weir" else 0,
    )
    offline: tuple[RequestSpec, ...] | AimdWindow = ()
    if cell.offline:
        offline = offline_of(trace, cell.seconds, cell.seed)
    kind, _, tokens = cell.arm.partition(":")
    if kind == "aimd" and isinstance(offline, tuple):
        offline = AimdWindow(offline, slos=cell.slos, settings=AimdSettings())
    result = replica.simulate(
        online=online_of(trace, cell.seconds, cell.seed) if cell.online else (),
        offline=offline,
        until_s=cell.seconds + 30.0,
        planner=None if kind == "weir" else planner_of(kind, int(tokens or 1 << 20)),
    )
    return summarise(result, from_s=RAMP_S, to_s=cell.seconds)


def planner_of(kind: str, step_tokens: int) -> PlannerFactory:
    """A baseline's scheduler."""

    def make(shape: EngineShape, kv: KvManager) -> StockScheduler:
        return StockScheduler(
            shape,
            kv,
            step_tokens=step_tokens,
            fixed=kind in {"fixed", "aimd"},
            by_class=kind != "fcfs",
        )

    return make


def slos_of(name: str, alone: Summary, tolerance: float) -> tuple[Slo, ...]:
    """The objectives of a row: online alone plus the tolerance."""
    return tuple(
        Slo(
            metric=metric,
            statistic=statistic,
            threshold_s=alone.latencies.statistic(metric, statistic) * (1 + tolerance),
            reference_s=alone.latencies.statistic(metric, statistic),
        )
        for metric, statistic in OBJECTIVES[name]
    )


@dataclass(frozen=True, kw_only=True)
class Base:
    """What a trace does without co-location, and under stock scheduling of its own prefix order."""

    alone: Summary
    ceiling: Summary
    static: dict[str, Summary]
    fixed_s: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a cell came to. ``ratio`` is measured over SLO, the worst of several."""

    slo: str
    tolerance: float
    ratio: float
    served_tokens_s: float
    ceiling_share: float
    bound_share: float
    step_ms: float
    busy: float
    error: float
    preemptions: int
    static_tokens_s: float | None
    aimd_tokens_s: float
    aimd_ratio: float
    online_hits: float
    worst: str


def row(
    key: tuple[str, float], slos: tuple[Slo, ...], done: Summary, aimd: Summary, base: Base
) -> Row:
    """A run against its objectives and the bound."""
    name, tolerance = key
    static = [
        summary.served_tokens_s
        for summary in base.static.values()
        if attained(summary.latencies, slos) <= 1.0
    ]
    worst = max(slos, key=lambda slo: attained(done.latencies, (slo,)))
    tails = [s.threshold_s for s in slos if s.metric is Metric.TBT and not s.is_mean]
    share = done.served_tokens_s / base.ceiling.served_tokens_s
    allowed = bound(
        fixed_s=base.fixed_s,
        step_limit_s=min(tails, default=None),
        online_share=base.alone.online_share,
    ) / bound(fixed_s=base.fixed_s, step_limit_s=base.ceiling.step_s, online_share=0.0)
    return Row(
        slo=name,
        tolerance=tolerance,
        ratio=attained(done.latencies, slos),
        served_tokens_s=done.served_tokens_s,
        ceiling_share=share,
        bound_share=share / min(allowed, 1.0),
        step_ms=done.step_s * 1e3,
        busy=done.busy,
        error=done.error,
        preemptions=done.preemptions,
        static_tokens_s=max(static, default=None),
        aimd_tokens_s=aimd.served_tokens_s,
        aimd_ratio=attained(aimd.latencies, slos),
        online_hits=done.online_hit_rate,
        worst=f"{worst.metric.value}-{worst.statistic}",
    )


def matrix(
    trace: str, names: Iterable[str], *, seconds: float, seed: int, model: str, jobs: int
) -> list[Row]:
    """All cells of a trace; prints as it goes."""
    empty = Cell(
        trace=trace, slos=(), online=True, offline=False, seconds=seconds, seed=seed, model=model
    )
    with ProcessPoolExecutor(jobs) as pool:
        offline = replace(empty, offline=True)
        arms = [replace(offline, arm=arm) for arm in STATIC_ARMS]
        alone, ceiling, *static = pool.map(run, (empty, replace(offline, online=False), *arms))
        base = Base(
            alone=alone,
            ceiling=ceiling,
            static=dict(zip(STATIC_ARMS, static, strict=True)),
            fixed_s=TRACES[trace].cost.empty_step_s,
        )
        _print_base(trace, base)
        keys = [(name, tolerance) for name in names for tolerance in TOLERANCES]
        objectives = [slos_of(name, alone, tolerance) for name, tolerance in keys]
        cells = [replace(offline, slos=slos) for slos in objectives]
        aimd = pool.map(run, [replace(cell, arm="aimd") for cell in cells])
        rows = []
        for made in map(row, keys, objectives, pool.map(run, cells), aimd, repeat(base)):
            rows.append(made)
            _print_row(made)
    return rows


def _print_base(trace: str, base: Base) -> None:
    print(
        f"\n{trace}: {len(base.alone.latencies.ttft_s)} requests, busy {base.alone.busy:.2f}, "
        f"u {base.alone.online_share:.2f}; ceiling {base.ceiling.served_tokens_s:.0f} served, "
        f"{base.ceiling.computed_tokens_s:.0f} computed tokens/s, "
        f"step {base.ceiling.step_s * 1e3:.0f} ms, busy {base.ceiling.busy:.2f}"
    )
    for name, summary in (("online alone", base.alone), *base.static.items()):
        values = " ".join(
            f"{metric.value}-{statistic} {summary.latencies.statistic(metric, statistic) * 1e3:.1f}"
            for metric, statistic in OBJECTIVES["all"]
        )
        print(
            f"{name:12} ms: {values}; {summary.served_tokens_s:.0f} tokens/s, "
            f"online hits {summary.online_hit_rate:.1%}"
        )
    print(
        "slo        tol  measured/SLO  tokens/s  of ceiling  of bound  step ms  busy  error  lost"
        "  best static       aimd (measured/SLO)  hits  worst"
    )


def _print_row(made: Row) -> None:
    static = "-" if made.static_tokens_s is None else f"{made.static_tokens_s:.0f}"
    print(
        f"{made.slo:9} {made.tolerance:4.0%} {made.ratio:13.3f} {made.served_tokens_s:9.0f} "
        f"{made.ceiling_share:11.1%} {made.bound_share:9.1%} {made.step_ms:8.1f} "
        f"{made.busy:5.2f} {made.error:6.1%} {made.preemptions:5} {static:>12} "
        f"{made.aimd_tokens_s:10.0f} ({made.aimd_ratio:.2f}) {made.online_hits:8.1%}  {made.worst}",
        flush=True,
    )


def main() -> None:
    """Parse arguments, run, print, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", choices=sorted(TRACES), action="append")
    parser.add_argument("--slo", choices=sorted(OBJECTIVES), action="append")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="attention", choices=["attention", "hygen"])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, default=None, help="where to write the rows")
    arguments = parser.parse_args()
    found = {
        trace: matrix(
            trace,
            arguments.slo or list(OBJECTIVES),
            seconds=arguments.seconds,
            seed=arguments.seed,
            model=arguments.model,
            jobs=arguments.jobs,
        )
        for trace in arguments.trace or ["steady"]
    }
    if arguments.json:
        plain = {trace: [asdict(made) for made in rows] for trace, rows in found.items()}
        arguments.json.write_text(json.dumps(plain, indent=1) + "\n")


if __name__ == "__main__":
    main()
