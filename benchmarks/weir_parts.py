"""The ideas of preset `weir`, each with and without, on two traces in the simulator.

Run: python -m benchmarks.weir_parts [--trace NAME ...] [--folder FOLDER]. Runs that have a file in
the folder are not made again. Writes benchmarks/results/weir_parts.json.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import resources
from itertools import product
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

import numpy as np
from typing_extensions import override

from benchmarks.claims import Claim, write_results
from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.ids import RequestId
from weir_engine.kv.manager import KvManager
from weir_engine.pool.offline_pool import OfflinePool
from weir_engine.presets import SEATS
from weir_engine.request import Request
from weir_engine.sched import budget, online_phase, tbt_account
from weir_engine.sched.account import OnlineLoad, QuietAccount, StepLimit
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sim.loop import Planner, Window
from weir_engine.sim.preset_run import preset_planner
from weir_engine.sim.profile_cost import ProfileCost
from weir_engine.sim.profiles import load_profile
from weir_engine.sim.replica import Replica
from weir_engine.sim.report import attained, summarise
from weir_engine.sim.traces import Cut, plain_csv
from weir_engine.sim.workload import (
    Documents,
    Lengths,
    RequestSpec,
    Turns,
    conversations,
    document_questions,
    poisson_times,
)

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "weir_parts"
SEEDS = (1, 2)
RAMP_S, END_S = 20.0, 140.0
TOLERANCE = 1.2
DUE_S = 120.0
DUE_EVERY = 10  # of so many documents one has a question that is due
OBJECTIVES = {
    "p99-tbt": ((Metric.TBT, "p99"),),
    "mean-tbt": ((Metric.TBT, "mean"),),
}
_DOCUMENTS = Documents(
    count=600,
    questions=8,
    document=Lengths(median=2500, sigma=0.4, low=200, high=6000),
    question=Lengths(median=60, sigma=0.5, low=10, high=400),
    output=Lengths(median=120, sigma=0.5, low=8, high=500),
)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One machine and one online load; ``total_blocks`` cuts its KV memory."""

    profile: str
    online: Callable[[int], tuple[RequestSpec, ...]]
    total_blocks: int | None = None


def azure(seed: int) -> tuple[RequestSpec, ...]:
    """Azure's conversations: a stretch of their own for each seed."""
    text = resources.files("weir_cli.demo").joinpath("data/azure2023_conv_excerpt.csv")
    lines = text.read_text("utf-8").splitlines()
    return Cut(start_s=END_S * (seed - 1), seconds=END_S, longest_tokens=8192).of(plain_csv(lines))


def chats(seed: int) -> tuple[RequestSpec, ...]:
    """Conversations of six turns that come back to their history."""
    rng = np.random.default_rng((seed, 60))
    turns = Turns(
        count=6,
        gap_s=12.0,
        message=Lengths(median=180, sigma=0.7, low=10, high=900),
        output=Lengths(median=120, sigma=0.6, low=8, high=400),
        longest_tokens=6000,
    )
    return conversations(rng, poisson_times(rng, rate_s=0.6, duration_s=END_S), turns=turns)


TRACES = {
    "azure": Trace(profile="rtx-pro-6000-llama-3.1-8b", online=azure),
    "chats": Trace(profile="a100-80gb-llama-3.1-8b", online=chats, total_blocks=3000),
}


class EvenMeanAccount(QuietAccount):
    """A mean of TBT without a bank: every step may be longer by the tolerance."""

    def __init__(self, slo: Slo) -> None:
        self._extra_s = slo.tolerance_s or 0.0

    @override
    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """The online work's own time plus the tolerance."""
        return StepLimit(seconds=load.base_s + self._extra_s if load.decoders else inf)


class KneeMeanAccount(tbt_account.MeanTbtAccount):
    """Lets in what lengthens the step by no more than a hundredth, whatever the bank holds."""

    @override
    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """The bank's limit, or a hundredth over the online work."""
        limit = super().step_limit(load)
        return replace(limit, seconds=max(limit.seconds, load.base_s * 1.01))


class NoFeedback:
    """A factor that stays."""

    factor = 1.0

    def __init__(self, **_: float) -> None:
        pass

    def observe(self, *, over: bool) -> None:
        """Makes no difference."""

    def end_step(self) -> None:
        """Makes no difference."""


def victims_by_tail(
    running: Iterable[Request],
    *,
    blocks: int,
    slots: int,
    releasable: Callable[[RequestId], int],
    block_size_tokens: int = 16,
) -> list[Request] | None:
    """Like ``offline_victims``; lost are only tokens beyond the last full block."""

    def lost(request: Request) -> float:
        full = min(len(request.block_hashes), request.computed_tokens // block_size_tokens)
        tail = request.computed_tokens - full * block_size_tokens
        return tail / max(releasable(request.id), 1)

    return _first(sorted(running, key=lambda r: (lost(r), -r.arrival_s)), blocks, slots, releasable)


def victims_by_arrival(
    running: Iterable[Request],
    *,
    blocks: int,
    slots: int,
    releasable: Callable[[RequestId], int],
) -> list[Request] | None:
    """The last arrivals, as vLLM does."""
    ordered = sorted(running, key=lambda r: (r.arrival_s, r.id), reverse=True)
    return _first(ordered, blocks, slots, releasable)


def _first(
    ordered: Sequence[Request], blocks: int, slots: int, releasable: Callable[[RequestId], int]
) -> list[Request] | None:
    victims = []
    for request in ordered:
        if blocks <= 0 and slots <= 0:
            break
        freed = releasable(request.id)
        if freed == 0 and slots <= 0:
            continue
        victims.append(request)
        blocks -= freed
        slots -= 1
    return victims if blocks <= 0 and slots <= 0 else None


def _model(name: str) -> Any:  # noqa: ANN401 - a patcher
    return patch.dict(SEATS, weir=replace(SEATS["weir"], model=name))


Patches = tuple[Callable[[], Any], ...]
VARIANTS: dict[str, Patches] = {
    "weir": (nullcontext,),
    "even-mean": (partial(patch.object, budget, "MeanTbtAccount", EvenMeanAccount),),
    "no-feedback": (partial(patch.object, tbt_account, "TailFeedback", NoFeedback),),
    "median-guard": (partial(patch.object, tbt_account, "guard_quantile", lambda _: 0.5),),
    "q95-guard": (partial(patch.object, tbt_account, "guard_quantile", lambda _: 0.95),),
    "modulewise": (partial(_model, "modulewise"),),
    "knee": (
        partial(_model, "modulewise"),
        partial(patch.object, budget, "MeanTbtAccount", KneeMeanAccount),
    ),
    "knee-linear": (partial(patch.object, budget, "MeanTbtAccount", KneeMeanAccount),),
    "victims-tail": (partial(patch.object, online_phase, "offline_victims", victims_by_tail),),
    "victims-last": (partial(patch.object, online_phase, "offline_victims", victims_by_arrival),),
    "no-deadlines": (nullcontext,),
}
PREEMPTING = ("victims-tail", "victims-last")  # on traces that are short of blocks only
MODULEWISE = ("modulewise", "knee")  # their model has to be profiled: slow, so on one trace
ONLY = {  # variants that differ under one objective alone
    "even-mean": "mean-tbt",
    "knee": "mean-tbt",
    "knee-linear": "mean-tbt",
    "no-feedback": "p99-tbt",
    "median-guard": "p99-tbt",
    "q95-guard": "p99-tbt",
    "no-deadlines": "p99-tbt",
}


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


def is_due(request_id: RequestId) -> bool:
    """True for the last question about every tenth document."""
    _, document, question = request_id.split("-")
    return int(document) % DUE_EVERY == 0 and int(question) == _DOCUMENTS.questions - 1


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


def offline_of(seed: int) -> tuple[RequestSpec, ...]:
    """Documents with questions: more than the run can finish."""
    return document_questions(np.random.default_rng((seed, 61)), _DOCUMENTS)


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
    latencies = summarise(result, from_s=RAMP_S, to_s=END_S).latencies
    return tuple(
        Slo(metric=metric, statistic=statistic, threshold_s=TOLERANCE * value, reference_s=value)
        for metric, statistic in OBJECTIVES[name]
        for value in [latencies.statistic(metric, statistic)]
    )


def run(trace: str, slos: tuple[Slo, ...], variant: str, seed: int) -> Done:
    """One run of a variant."""
    replica = replica_of(TRACES[trace], slos, seed, offline=True)
    watched: list[Watched] = []
    offline = offline_of(seed)
    due = {spec.id for spec in offline if is_due(spec.id)}

    def planner(shape: EngineShape, kv: KvManager) -> Planner:
        pool = DuePool(told=variant != "no-deadlines")
        watched.append(Watched(preset_planner(replica, "weir", pool=pool)(shape, kv)))
        return watched[0]

    with ExitStack() as stack:
        for enter in VARIANTS[variant]:
            stack.enter_context(enter())
        result = replica.simulate(
            online=TRACES[trace].online(seed),
            offline=Window(offline, size=len(offline)),  # the order is the pool's alone
            until_s=END_S + 30,
            planner=planner,
        )
    found = summarise(result, from_s=RAMP_S, to_s=END_S)
    ended_s = watched[0].ended_s
    return Done(
        ratio=attained(found.latencies, slos),
        served_tokens_s=found.served_tokens_s,
        preemptions=result.preemptions,
        due_in_time=sum(ended_s.get(name, inf) <= DUE_S for name in due) / len(due),
    )


def cells() -> list[tuple[str, str, str]]:
    """Trace, objective and variant of every comparison."""
    return [
        (trace, objective, variant)
        for trace in TRACES
        for objective in OBJECTIVES
        for variant in VARIANTS
        if ONLY.get(variant, objective) == objective
        and (variant not in PREEMPTING or TRACES[trace].total_blocks is not None)
        and (variant not in MODULEWISE or trace == "azure")
    ]


def main() -> None:
    """Runs what is missing, prints and writes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weir_parts")
    parser.add_argument("--trace", choices=sorted(TRACES), action="append")
    parser.add_argument("--folder", type=Path, default=CACHE)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    slos: dict[tuple[str, str, int], tuple[Slo, ...]] = {}
    for seed, (trace, objective, variant) in product(SEEDS, cells()):
        path = given.folder / f"{trace}.{objective}.{variant}.{seed}.json"
        if path.exists() or trace not in (given.trace or TRACES):
            continue
        key = (trace, objective, seed)
        if key not in slos:
            slos[key] = objective_of(*key)
        done = run(trace, slos[key], variant, seed)
        path.write_text(json.dumps(asdict(done)))
        print(f"{path.stem:36} {done}", flush=True)
    report(given.folder)


def report(folder: Path) -> None:
    """All cells over the seeds that every cell of a trace has; the whole preset has to hold."""

    def file(cell: tuple[str, str, str], seed: int) -> Path:
        return folder / f"{'.'.join(cell)}.{seed}.json"

    seeds = {
        trace: [
            seed
            for seed in SEEDS
            if all(file(cell, seed).exists() for cell in cells() if cell[0] == trace)
        ]
        for trace in TRACES
    }
    if not all(seeds.values()):
        print("some runs are missing: no result was written")
        return
    runs = {
        cell: [Done(**json.loads(file(cell, seed).read_text())) for seed in seeds[cell[0]]]
        for cell in cells()
    }
    rows = []
    for (trace, objective, variant), found in runs.items():
        whole = runs[trace, objective, "weir"]
        shares = [a.served_tokens_s / b.served_tokens_s for a, b in zip(found, whole, strict=True)]
        row = {
            "trace": trace,
            "objective": objective,
            "variant": variant,
            "seeds": seeds[trace],
            "offline_over_weir": [round(share, 4) for share in shares],
            "runs": [asdict(done) for done in found],
        }
        rows.append(row)
        print(
            f"{trace:6} {objective:9} {variant:14} {mean(shares):.3f} x weir  latency over SLO "
            f"{mean(done.ratio for done in found):.3f}  preemptions "
            f"{mean(done.preemptions for done in found):.0f}  due in time "
            f"{mean(done.due_in_time for done in found):.0%}"
        )
    claims = [
        _held(trace, objective, [done.ratio for done in runs[trace, objective, "weir"]])
        for trace in TRACES
        for objective in OBJECTIVES
    ]
    command = shlex.join(["python", "-m", "benchmarks.weir_parts"])
    write_results("weir_parts", claims, command=command, seeds=SEEDS, more={"rows": rows})


def _held(trace: str, objective: str, ratios: list[float]) -> Claim:
    return Claim(
        id=f"weir-parts/{trace}/{objective}",
        what=f"preset weir, simulated, trace {trace}: measured {objective} over its SLO of online "
        f"alone + {TOLERANCE - 1:.0%}",
        unit="x",
        value=round(mean(ratios), 3),
        low=round(min(ratios), 3),
        high=round(max(ratios), 3),
        target="<= 1",
    )


if __name__ == "__main__":
    main()
