"""Simulates a preset on a replica: its seats, its eviction order, its latency model."""

from collections.abc import Callable
from dataclasses import replace

from weir_engine.config import EngineShape
from weir_engine.kv.manager import KvManager
from weir_engine.presets import SEATS, build_scheduler
from weir_engine.sched.order import OnlineOrder
from weir_engine.sched.scheduler import Scheduler
from weir_engine.sched.selection import OfflineOrder
from weir_engine.sim.cpu_lane import AttentionLane
from weir_engine.sim.loop import Feeder, Simulation
from weir_engine.sim.records import SimResult
from weir_engine.sim.replica import PlannerFactory, Replica
from weir_engine.sim.threshold import ForecastThreshold, ThresholdSettings
from weir_engine.sim.workload import RequestSpec


def preset_planner(  # noqa: PLR0913 - as for one run
    replica: Replica,
    preset: str,
    *,
    static_budget_s: float | None = None,
    order: OnlineOrder | None = None,
    pool: OfflineOrder | None = None,
    lane: AttentionLane | None = None,
    may_refuse: bool = False,
    tpot_from_arrival: bool = False,
) -> Callable[[EngineShape, KvManager], Scheduler]:
    """Makes the production scheduler with the preset's seats, its model profiled on the replica."""

    def make(shape: EngineShape, kv: KvManager) -> Scheduler:
        return build_scheduler(
            preset,
            shape=shape,
            slos=replica.slos,
            kv=kv,
            model=replace(replica, model=SEATS[preset].model).latency_model(),
            pool=pool,
            order=order,
            policy=replica.policy,
            static_budget_s=static_budget_s,
            lane=lane,
            swap=replica.swap,
            may_refuse=may_refuse,
            tpot_from_arrival=tpot_from_arrival,
        )

    return make


def run_preset(  # noqa: PLR0913 - one run, all that it depends on
    replica: Replica,
    preset: str,
    *,
    online: tuple[RequestSpec, ...] = (),
    offline: tuple[RequestSpec, ...] | Feeder = (),
    until_s: float,
    static_budget_s: float | None = None,
    threshold: ThresholdSettings | None = None,
) -> SimResult:
    """One run of a preset; ``threshold`` puts a forecast in charge of offline's KV blocks."""
    return preset_simulation(
        replica,
        preset,
        online=online,
        offline=offline,
        static_budget_s=static_budget_s,
        threshold=threshold,
    ).run(until_s=until_s)


def preset_simulation(  # noqa: PLR0913 - as for one run
    replica: Replica,
    preset: str,
    *,
    online: tuple[RequestSpec, ...] = (),
    offline: tuple[RequestSpec, ...] | Feeder = (),
    static_budget_s: float | None = None,
    threshold: ThresholdSettings | None = None,
    lane: AttentionLane | None = None,
    may_refuse: bool = False,
) -> Simulation:
    """The same, yet to start; ``lane`` is attention on host CPUs."""
    make = preset_planner(
        replica, preset, static_budget_s=static_budget_s, lane=lane, may_refuse=may_refuse
    )
    planner: PlannerFactory = make
    if threshold is not None:
        planner = ForecastThreshold.over(make, replica.policy, threshold)
    seats = SEATS[preset]
    return replace(replica, eviction=seats.eviction, manager=seats.manager).simulation(
        online=online, offline=offline, planner=planner, lane=lane
    )
