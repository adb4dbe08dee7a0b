"""How a run of HyGen's benchmark is simulated: workload and arms; judged in `hygen_judge.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.papers.paper import read_rows
from weir_engine.config import EngineShape, Policy, Slo
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
from weir_engine.sim.report import Latencies
from weir_engine.sim.workload import RequestSpec, Segment, online_from_rows

CHUNKS = (256, 512, 1024, 2048)
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
    replica = replica_of(setup, chunk)
    return _run_preset(setup, "hygen", replica, judged=judged, budget_s=budget_s)


def _run_preset(
    setup: Setup,
    preset: str,
    replica: Replica,
    *,
    judged: bool = False,
    budget_s: float | None = None,
) -> Measured:
    result = run_preset(
        replica,
        preset,
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
    return _run_preset(setup, "sarathi", replica_of(setup, chunk))


def run_weir(setup: Setup, slos: tuple[Slo, ...], chunk: int) -> Measured:
    """Weir with the cell's objectives."""
    return _run_preset(setup, "weir", replica_of(setup, chunk, slos))


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


def run_aimd(setup: Setup, slos: tuple[Slo, ...], chunk: int, gateway: AimdSettings) -> Measured:
    """Fixed priority fed by a gateway whose concurrency follows the objectives."""
    result = replica_of(setup, chunk).simulate(
        online=online_of(setup, judged=False),
        offline=AimdWindow(offline_of(setup), slos=slos, settings=gateway),
        until_s=_until_s(setup),
        planner=partial(_stock, chunk, fixed=True),
    )
    return measured(setup, result)
