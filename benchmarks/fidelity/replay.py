"""The same traces in the simulator, and how far its figures are from the live engine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import mean
from typing import Any

from benchmarks.colocation.control import OFFLINE_KV_SHARE
from benchmarks.colocation.setup import BLOCKS, SEQUENCES
from benchmarks.fidelity.traces import (
    HELD_LINES,
    SLO,
    WINDOW,
    FidelityTrace,
    offline_specs,
    online_specs,
)
from weir_engine.config import Metric, Policy
from weir_engine.sim.loop import Window as OfflineWindow
from weir_engine.sim.preset_run import preset_simulation
from weir_engine.sim.recorded import RecordedProfile
from weir_engine.sim.records import RequestRecord, SimResult
from weir_engine.sim.replica import Replica
from weir_engine.sim.report import Latencies, summarise


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """One run, live or simulated. ``tokens_s`` serves both classes; latencies are the clients'."""

    tokens_s: float
    offline_tokens_s: float
    steps_s: float
    ttft_s: float
    tpot_s: float
    ttft_p99_s: float
    tbt_p99_s: float

    def off(self, name: str, live: Figures) -> float:
        """How far a figure is from the live one, in percent of that."""
        real = getattr(live, name)
        return float(100 * (getattr(self, name) / real - 1))


def mean_figures(runs: Sequence[Figures]) -> Figures:
    """Each figure's mean over some runs."""
    means = {each.name: mean(getattr(run, each.name) for run in runs) for each in fields(Figures)}
    return Figures(**means)


def of_live(content: Mapping[str, Any]) -> Figures:
    """What a live run's file says."""
    found = content["measurement"]
    online = found["online"]
    return Figures(
        tokens_s=found["online_tokens_per_s"] + found["offline_served_per_s"],
        offline_tokens_s=found["offline_served_per_s"],
        steps_s=found["steps_per_s"],
        ttft_s=online["ttft"]["mean_s"],
        tpot_s=online["tpot"]["mean_s"],
        ttft_p99_s=online["ttft"]["p99_s"],
        tbt_p99_s=online["tbt"]["p99_s"],
    )


def simulated(
    profile: RecordedProfile, trace: FidelityTrace, *, http_s: float, seed: int
) -> Figures:
    """One simulation of a trace; ``http_s`` is what a first token takes beyond the engine."""
    blocks = int(BLOCKS * OFFLINE_KV_SHARE)
    shape = profile.shape
    replica = Replica(
        cost=profile.cost,
        shape=shape,
        slos=(SLO,),
        policy=Policy(
            offline_kv_blocks=blocks if trace.colocated else 0,
            offline_seq_slots=SEQUENCES if trace.colocated else 0,
        ),
        profiled=False,  # agents learn from their traffic
        guard_blocks=max(0, shape.total_blocks - blocks),
        plan_s=profile.pause_s,
        plan_request_s=profile.pause_request_s,
        seed=seed,
    )
    simulation = preset_simulation(
        replica,
        "weir",
        online=online_specs(trace),
        offline=OfflineWindow(offline_specs(trace), size=HELD_LINES),
    )
    return _figures(simulation.run(until_s=WINDOW.total_s + 20.0), http_s)


def _figures(result: SimResult, http_s: float) -> Figures:
    start_s, end_s = WINDOW.ramp_s, WINDOW.ramp_s + WINDOW.measure_s
    found = summarise(result, from_s=start_s, to_s=end_s)
    steps = sum(start_s < step.ended_s <= end_s for step in result.steps)
    latencies = found.latencies
    return Figures(
        tokens_s=found.served_tokens_s + _online_tokens(result.online, start_s, end_s),
        offline_tokens_s=found.served_tokens_s,
        steps_s=steps / WINDOW.measure_s,
        ttft_s=mean(latencies.ttft_s) + http_s,
        tpot_s=mean(latencies.tpot_s),
        ttft_p99_s=_p99(latencies, Metric.TTFT) + http_s,
        tbt_p99_s=_p99(latencies, Metric.TBT),
    )


def _online_tokens(records: tuple[RequestRecord, ...], start_s: float, end_s: float) -> float:
    """Tokens a second as the live run counts them: a prompt at its first token."""
    tokens = 0
    for record in records:
        tokens += sum(start_s <= at_s < end_s for at_s in record.tokens_s)
        if record.tokens_s and start_s <= record.tokens_s[0] < end_s:
            tokens += record.prompt_tokens
    return tokens / (end_s - start_s)


def _p99(latencies: Latencies, metric: Metric) -> float:
    return latencies.statistic(metric, "p99")
