"""One run of one variant: the machine, the objective, what it came to."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf

from typing_extensions import override

from benchmarks.engine_builds import must_be_interpreted
from benchmarks.weir_parts.traces import DUE_S, END_S, TRACES, Trace, is_due, offline_of
from benchmarks.weir_parts.variants import OBJECTIVES, VARIANTS, Cell
from weir_engine.config import EngineShape, Policy, Slo
from weir_engine.ids import RequestId
from weir_engine.kv.manager import KvManager
from weir_engine.pool.offline_pool import OfflinePool
from weir_engine.presets import SEATS
from weir_engine.request import Request
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sim.loop import Planner, Window
from weir_engine.sim.preset_run import preset_planner
from weir_engine.sim.profile_cost import ProfileCost
from weir_engine.sim.profiles import load_profile
from weir_engine.sim.replica import PlannerFactory, Replica
from weir_engine.sim.report import attained, summarise
from weir_engine.sim.threshold import ForecastThreshold, ThresholdSettings

TOLERANCE = 1.2
THRESHOLD = ThresholdSettings(interval_s=1.0, found_again=True)
_RAMP_S = 20.0


class DuePool(OfflinePool):
    """Gives the requests that are due their deadline, if ``told``."""

    def __init__(self, *, told: bool) -> None:
        super().__init__()
        self._told = told

    @override
    def add(self, request: Request) -> None:
        """A request waits, with its deadline."""
        if self._told and is_due(request.id):
            request.deadline_s = DUE_S
        super().add(request)


class Watched:
    """A planner; notes which requests ended when."""

    def __init__(self, planner: Planner) -> None:
        self.add = planner.add
        self.plan = planner.plan
        self.begin = planner.begin
        self._planner = planner
        self.ended_s: dict[RequestId, float] = {}

    def commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """The step ended."""
        for request_id in outcome.finished:
            self.ended_s[request_id] = outcome.ended_s
        self._planner.commit(plan, outcome)


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a run came to; ``ratio`` is the measured latency over its objective."""

    ratio: float
    served_tokens_s: float
    preemptions: int
    due_in_time: float


def replica_of(trace: Trace, slos: tuple[Slo, ...], seed: int, *, offline: bool) -> Replica:
    """The machine under the objectives."""
    profile = load_profile(trace.profile)
    shape = profile.engine_shape(max_batched_tokens=2048, max_seqs=256)
    if trace.total_blocks is not None:
        shape = replace(shape, total_blocks=trace.total_blocks)
    return Replica(
        cost=ProfileCost(profile=profile),
        shape=shape,
        slos=slos,
        policy=Policy(
            offline_kv_blocks=shape.total_blocks * 9 // 10 if offline else 0,
            offline_seq_slots=128 if offline else 0,
        ),
        eviction=SEATS["weir"].eviction,
        seed=seed,
    )


def objective_of(trace: str, name: str, seed: int) -> tuple[Slo, ...]:
    """Online-only plus the tolerance."""
    alone = replica_of(TRACES[trace], (), seed, offline=False)
    result = alone.simulate(online=TRACES[trace].online(seed), until_s=END_S + 30)
    latencies = summarise(result, from_s=_RAMP_S, to_s=END_S).latencies
    return tuple(
        Slo(metric=metric, statistic=statistic, threshold_s=TOLERANCE * value, reference_s=value)
        for metric, statistic in OBJECTIVES[name]
        for value in [latencies.statistic(metric, statistic)]
    )


def run(cell: Cell, slos: tuple[Slo, ...], seed: int) -> Done:
    """One run of a variant.

    Raises:
        CompiledEngineError: it replaces parts of the engine, and that is compiled.
    """
    if cell.variant != "weir":
        must_be_interpreted(f"variant {cell.variant!r}")
    trace = TRACES[cell.trace]
    replica = replica_of(trace, slos, seed, offline=True)
    watched: list[Watched] = []
    offline = offline_of(seed)
    due = {spec.id for spec in offline if is_due(spec.id)}

    def planner(shape: EngineShape, kv: KvManager) -> Planner:
        pool = DuePool(told=cell.variant != "no-deadlines")
        fixed = preset_planner(replica, "weir", pool=pool)
        forecast = ForecastThreshold.over(fixed, replica.policy, THRESHOLD)
        chosen: PlannerFactory = fixed if cell.variant == "fixed-threshold" else forecast
        watched.append(Watched(chosen(shape, kv)))
        return watched[0]

    with ExitStack() as stack:
        for enter in VARIANTS[cell.variant]:
            stack.enter_context(enter())
        result = replica.simulate(
            online=trace.online(seed),
            offline=Window(offline, size=len(offline)),  # the order is the pool's alone
            until_s=END_S + 30,
            planner=planner,
        )
    found = summarise(result, from_s=_RAMP_S, to_s=END_S)
    ended_s = watched[0].ended_s
    return Done(
        ratio=attained(found.latencies, slos),
        served_tokens_s=found.served_tokens_s,
        preemptions=result.preemptions,
        due_in_time=sum(ended_s.get(name, inf) <= DUE_S for name in due) / len(due),
    )
