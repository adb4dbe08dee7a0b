"""One run of one arm in BROS's set-up, and what it came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarks.papers.ablation import NO_ROOM, PROMPTS_ALONE, without
from benchmarks.papers.bros_workload import LONGEST_TOKENS, Sets, documents, online_of
from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.kv.bidirectional import BidirectionalKvManager
from weir_engine.kv.eviction import LruEviction
from weir_engine.kv.layout import most_empty_first
from weir_engine.kv.manager import KvManager
from weir_engine.presets import SEATS
from weir_engine.sim.adaptive_prefill import AdaptivePrefill, AdaptiveSettings
from weir_engine.sim.baselines import AimdSettings, AimdWindow, StockScheduler
from weir_engine.sim.loop import Feeder, Planner, Simulation
from weir_engine.sim.preset_run import preset_planner
from weir_engine.sim.profile_cost import ProfileCost
from weir_engine.sim.profiles import load_profile
from weir_engine.sim.records import RequestRecord
from weir_engine.sim.replica import PlannerFactory, Replica
from weir_engine.sim.whole_prompts import RoundRobin, WholePromptFcfs
from weir_engine.sim.workload import RequestSpec

TTFT_S, TPOT_S = 0.4, 0.2
SLOS = (
    Slo(metric=Metric.TTFT, statistic="p90", threshold_s=TTFT_S),
    Slo(metric=Metric.TPOT, statistic="p90", threshold_s=TPOT_S),
)
SET_SIZE = 128
STEP_TOKENS = LONGEST_TOKENS  # whole prompts: a step takes the longest one
SLOTS = 512
_VLLM_SLOTS = 256  # its default
_LONGEST_DRAIN_S = 600.0
_SLICE_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """One rate and seed on one profile; ``kv_tokens`` None: all that fit beside the weights."""

    profile: str
    data: Path
    rate_s: float
    window_s: float
    seed: int
    kv_tokens: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What an arm came to: online requests that arrived in the window, offline ones that ended."""

    latency_s: float
    ttft: float
    tpot: float
    offline_s: float
    offline_tokens_s: float
    unanswered: int
    preemptions: int
    copied_tokens: int
    step_s: float


PAGED = "weir, paged"
"""Weir on KV blocks that no two requests fill, as vLLM's."""

_PRESETS = {
    "BROS": "bros",
    "BROS, most empty block": "bros",
    "BROS, paged": "bros-paged",
    "weir": "weir",
    PAGED: "weir",
    "weir, TPOT alone": "weir",
    PROMPTS_ALONE: "weir",
    NO_ROOM: "weir",
}


def simulate(setup: Setup, arm: str) -> Outcome:
    """One run of one arm."""
    with without(arm):
        return _simulate(setup, arm)


def _simulate(setup: Setup, arm: str) -> Outcome:
    replica = _replica(setup, arm)
    online = online_of(setup.data, rate_s=setup.rate_s, seconds=setup.window_s, seed=setup.seed)
    caches: list[KvManager] = []
    make = _planner(replica, arm)

    def seen(shape: EngineShape, kv: KvManager) -> Planner:
        caches.append(kv)
        return make(shape, kv)

    offline: Feeder = Sets(size=SET_SIZE, seed=setup.seed)
    if arm == "aimd":
        specs = documents(2000, setup.seed)
        offline = AimdWindow(specs, slos=SLOS, settings=AimdSettings(most=SLOTS))
    simulation = replica.simulation(online=online, offline=offline, planner=seen)
    simulation.advance(setup.window_s)
    finished = simulation.result().offline_finished
    _drain(simulation, setup, len(online))
    return _outcome(setup, simulation, online, finished, caches[0])


def _replica(setup: Setup, arm: str) -> Replica:
    profile = load_profile(setup.profile)
    shape = profile.engine_shape(
        max_batched_tokens=STEP_TOKENS,
        max_seqs=_VLLM_SLOTS if arm.startswith("vLLM") else SLOTS,
        max_model_len_tokens=LONGEST_TOKENS,
        kv_tokens=setup.kv_tokens,
    )
    preset = _PRESETS.get(arm)
    manager: Callable[..., KvManager] = KvManager if preset is None else SEATS[preset].manager
    if preset == "weir" and arm != PAGED:  # the engine that BROS has
        manager = BidirectionalKvManager
    if arm == "BROS, most empty block":  # claimed as BROS §5.2 says
        manager = partial(BidirectionalKvManager, order=most_empty_first)
    return Replica(
        cost=ProfileCost(profile=profile),
        shape=shape,
        slos=SLOS[1:] if arm == "weir, TPOT alone" else SLOS,
        policy=Policy(offline_kv_blocks=shape.total_blocks, offline_seq_slots=shape.max_seqs),
        eviction=LruEviction() if preset is None else SEATS[preset].eviction,
        manager=manager,
        prefix_cache=False,
        seed=setup.seed,
    )


def _planner(replica: Replica, arm: str) -> PlannerFactory:
    if arm in _PRESETS:
        return preset_planner(replica, _PRESETS[arm])
    if arm.startswith("vLLM"):
        return lambda shape, kv: WholePromptFcfs(shape, kv, mixed=arm == "vLLM, mixed steps")
    if arm == "round robin":
        return RoundRobin
    if arm == "adaptive":
        settings = AdaptiveSettings(most=STEP_TOKENS)
        return lambda shape, kv: AdaptivePrefill(shape, kv, slos=SLOS, settings=settings)
    return lambda shape, kv: StockScheduler(shape, kv, step_tokens=STEP_TOKENS, fixed=True)


def _drain(simulation: Simulation, setup: Setup, arrived: int) -> None:
    """Go on until every online request is answered, or for long enough."""
    until_s = setup.window_s
    while until_s < setup.window_s + _LONGEST_DRAIN_S:
        if len(simulation.result().online) == arrived:
            return
        until_s += _SLICE_S
        simulation.advance(until_s)


def _outcome(
    setup: Setup,
    simulation: Simulation,
    online: tuple[RequestSpec, ...],
    finished: int,
    kv: KvManager,
) -> Outcome:
    result = simulation.result()
    records = {record.id: record for record in result.online}
    latencies = [_latency_s(spec, records.get(spec.id), ended_s=result.ended_s) for spec in online]
    inside = [step for step in result.steps if step.ended_s <= setup.window_s]
    answered = list(records.values())
    return Outcome(
        latency_s=fmean(latencies),
        ttft=sum(r.ttft_s <= TTFT_S for r in answered) / len(online),
        tpot=sum(r.tpot_s is None or r.tpot_s <= TPOT_S for r in answered) / len(online),
        offline_s=finished / setup.window_s,
        offline_tokens_s=sum(step.offline_served_tokens for step in inside) / setup.window_s,
        unanswered=len(online) - len(answered),
        preemptions=result.preemptions,
        copied_tokens=kv.copies.out_slots if isinstance(kv, BidirectionalKvManager) else 0,
        step_s=fmean(step.ended_s - step.started_s for step in inside),
    )


def _latency_s(spec: RequestSpec, record: RequestRecord | None, *, ended_s: float) -> float:
    """End-to-end latency a token (BROS §7.1); without an answer what it waited already."""
    last_s = ended_s if record is None else record.tokens_s[-1]
    return (last_s - spec.arrival_s) / spec.output_tokens


def shorter(setup: Setup) -> Setup:
    """The same for a look."""
    return replace(setup, window_s=setup.window_s / 4)
