"""One run of one arm in OmniServe's set-up: its engine, and what it came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from benchmarks.papers.omniserve_workload import (
    BATCH,
    Setup,
    offline_of,
    online_of,
    pace_of,
    slos_of,
)
from weir_engine.config import EngineShape, Policy
from weir_engine.kv.eviction import LruEviction
from weir_engine.kv.manager import KvManager
from weir_engine.presets import SEATS, build_scheduler
from weir_engine.sim.baselines import AimdSettings, AimdWindow, StockScheduler
from weir_engine.sim.cpu_attention_cost import CpuAttentionCost
from weir_engine.sim.cpu_lane import AttentionLane, CpuHosts
from weir_engine.sim.headroom import HeadroomScheduler, cpu_serving_tokens_s
from weir_engine.sim.loop import Feeder, Planner, Window
from weir_engine.sim.profile_cost import ProfileCost
from weir_engine.sim.profiles import HardwareProfile, load_profile
from weir_engine.sim.records import RequestRecord, SimResult
from weir_engine.sim.replica import Replica

BLOCK_TOKENS = 64
LONGEST_TOKENS = 16_384
_WINDOW = 128
_SLOTS = 512
_HEADROOM = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What an arm came to.

    ``offline_s`` and ``decoded_s``: offline tokens a second, all and decoded; ``cpu_s`` those of
    the CPU hosts. ``ttft`` and ``tpot`` are the shares of the admitted that held each objective,
    ``attainment`` the share of all that held both: a refused one is missed.
    """

    attainment: float
    ttft: float
    tpot: float
    offline_s: float
    decoded_s: float
    cpu_s: float
    online_s: float
    finished: int
    refused: float
    step_s: float
    error: float


# -- arms -------------------------------------------------------------------------------------

Factory = Callable[[EngineShape, KvManager], Planner]
LANED = ("omniserve", "weir")
"""Arms on an engine with a lane for attention on the CPU hosts."""
CHUNKED = ("llumnix-like", "sarathi-serve", "aimd")
ARMS = ("omniserve", "llumnix-like", "neo-like", "sarathi-serve", "aimd", "weir")


def simulate(setup: Setup, arm: str, chunk: int = 2048, *, refuse: bool = False) -> Outcome:
    """One run; ``chunk`` is the tokens a step of the arms without a latency budget."""
    profile = load_profile(setup.profile)
    hosts = 1 + setup.remote
    lane = None
    if arm in LANED:
        given = CpuHosts(remote=setup.remote, network_bytes_s=setup.network_bytes_s)
        lane = AttentionLane(profile, given)
    replica = _replica(setup, profile, arm, chunk, hosts)
    specs = offline_of(setup)
    offline: Feeder = Window(specs, size=_WINDOW)
    if arm == "aimd":
        offline = AimdWindow(specs, slos=slos_of(setup), settings=AimdSettings())
    simulation = replica.simulation(
        online=online_of(setup),
        offline=offline,
        planner=_planner(replica, arm, lane, refuse=refuse),
        lane=lane,
    )
    result = simulation.run(until_s=setup.window_s)
    found = _outcome(setup, result, simulation.unfinished())
    if arm != "llumnix-like":
        return found
    prompt, output, _ = BATCH[setup.offline]
    beside = cpu_serving_tokens_s(profile, hosts=hosts, prompt_tokens=prompt, output_tokens=output)
    cpu_decoded = beside * output / (prompt + output)
    return replace(
        found,
        offline_s=found.offline_s + beside,
        decoded_s=found.decoded_s + cpu_decoded,
        cpu_s=beside,
    )


def _replica(setup: Setup, profile: HardwareProfile, arm: str, chunk: int, hosts: int) -> Replica:
    on_cpu = int(CpuHosts().memory_bytes * hosts // profile.model.kv_bytes_per_token)
    shape = profile.engine_shape(
        max_batched_tokens=chunk if arm in CHUNKED else 2048,
        max_seqs=_SLOTS,
        max_model_len_tokens=LONGEST_TOKENS,
        block_size_tokens=BLOCK_TOKENS,
        kv_tokens=on_cpu if arm == "neo-like" else setup.kv_tokens,
    )
    neo = CpuAttentionCost(profile=profile, hosts=hosts)
    return Replica(
        cost=neo if arm == "neo-like" else ProfileCost(profile=profile),
        shape=shape,
        slos=pace_of(setup) if arm == "weir" else slos_of(setup),
        policy=Policy(offline_kv_blocks=shape.total_blocks, offline_seq_slots=_SLOTS // 2),
        seed=setup.seed,
        eviction=SEATS[arm].eviction if arm in SEATS else LruEviction(),
    )


def _planner(replica: Replica, arm: str, lane: AttentionLane | None, *, refuse: bool) -> Factory:
    shape = replica.shape
    if arm == "aimd":
        return lambda shape, kv: StockScheduler(
            shape, kv, step_tokens=shape.max_batched_tokens, fixed=True
        )
    if arm == "llumnix-like":
        held = int((1 - _HEADROOM) * shape.total_blocks)
        return lambda shape, kv: HeadroomScheduler(
            shape, kv, step_tokens=shape.max_batched_tokens, offline_blocks=held
        )
    preset = "omniserve" if arm == "neo-like" else arm
    name = {"neo-like": "attention", "weir": "modulewise"}.get(arm, SEATS[preset].model)
    # What an agent measures at start does not depend on the workload: the same for every seed.
    model = replace(replica, model=name, seed=0).latency_model()

    def make(shape: EngineShape, kv: KvManager) -> Planner:
        return build_scheduler(
            preset,
            shape=shape,
            slos=replica.slos,
            kv=kv,
            model=model,
            policy=replica.policy,
            lane=lane,
            may_refuse=refuse,
        )

    return make


# -- judging ----------------------------------------------------------------------------------


def _outcome(setup: Setup, result: SimResult, unfinished: tuple[RequestRecord, ...]) -> Outcome:
    until_s = setup.window_s - setup.ttft_s
    judged = [r for r in (*result.online, *unfinished) if setup.ramp_s <= r.arrival_s < until_s]
    answered = [r for r in judged if r.tokens_s]
    ended = {r.id for r in result.online}
    refused = [r for r in judged if not r.tokens_s and r.id in ended]
    in_time = [r for r in answered if r.ttft_s <= setup.ttft_s]
    paced = [r for r in answered if (r.tpot_s or 0.0) <= setup.tpot_s]
    both = {r.id for r in in_time} & {r.id for r in paced}
    taken = max(len(judged) - len(refused), 1)
    steps = [step for step in result.steps if step.ended_s > setup.ramp_s]
    length_s = setup.window_s - setup.ramp_s
    seconds = [step.ended_s - step.started_s for step in steps]
    errors = [
        abs(step.predicted_s / duration_s - 1)
        for step, duration_s in zip(steps, seconds, strict=True)
    ]
    return Outcome(
        attainment=len(both) / max(len(judged), 1),
        ttft=len(in_time) / taken,
        tpot=len(paced) / max(len(answered), 1),
        offline_s=sum(step.offline_served_tokens for step in steps) / length_s,
        decoded_s=sum(step.offline_decoded_tokens for step in steps) / length_s,
        cpu_s=sum(step.cpu_tokens for step in steps) / length_s,
        online_s=sum(step.online_tokens for step in steps) / length_s,
        finished=result.offline_finished,
        refused=len(refused) / max(len(judged), 1),
        step_s=float(np.mean(seconds)) if seconds else 0.0,
        error=float(np.mean(errors)) if errors else 0.0,
    )


@cache
def dram_bound_s(profile: str, offline: str, hosts: int) -> float:
    """Offline tokens a second that DRAM bandwidth allows: each reads its whole context once."""
    prompt, output, _ = BATCH[offline]
    found = load_profile(profile)
    layers = found.model.layers
    return 1 / found.cpu_attention_s(prompt + output // 2, hosts=hosts, layers=layers)


def lane_bound_s(profile: str, offline: str, hosts: int, step_s: float) -> float:
    """The same by host memory: a full lane, each request a layer further with every step."""
    prompt, output, _ = BATCH[offline]
    found = load_profile(profile)
    room = CpuHosts().memory_bytes * hosts // found.model.kv_bytes_per_token
    return room / (prompt + output / 2) / (found.model.layers * step_s)


def plain(outcome: Outcome) -> dict[str, Any]:
    """As JSON has it."""
    return asdict(outcome)
