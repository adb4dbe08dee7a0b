"""One run of the matrix: an arm on a trace, with online traffic, batch work or both."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.sim_matrix.traces import TRACES, offline_of, online_of, policy_of
from weir_engine.config import EngineShape, Policy, Slo
from weir_engine.kv.eviction import LruEviction
from weir_engine.kv.manager import KvManager
from weir_engine.presets import SEATS
from weir_engine.sim.baselines import AimdSettings, AimdWindow, StockScheduler
from weir_engine.sim.preset_run import preset_planner
from weir_engine.sim.replica import PlannerFactory, Replica
from weir_engine.sim.report import Summary, summarise
from weir_engine.sim.threshold import ForecastThreshold, ThresholdSettings
from weir_engine.sim.workload import RequestSpec

_RAMP_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of the matrix."""

    trace: str
    slos: tuple[Slo, ...]
    online: bool
    offline: bool
    seconds: float
    seed: int
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
        seed=cell.seed,
        eviction=SEATS["weir"].eviction if cell.arm == "weir" else LruEviction(),
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
        planner=_weir(replica, offline=cell.offline)
        if kind == "weir"
        else planner_of(kind, int(tokens or 1 << 20)),
    )
    return summarise(result, from_s=_RAMP_S, to_s=cell.seconds)


def _weir(replica: Replica, *, offline: bool) -> PlannerFactory:
    """The preset, with the threshold that a control plane sends where there is offline work."""
    make = preset_planner(replica, "weir")
    if not offline:
        return make
    return ForecastThreshold.over(make, replica.policy, ThresholdSettings(found_again=True))


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
