"""How long `Scheduler.plan()` takes with 256 running requests and a large pool.

Real scheduler, block manager and pool; only the engine is a clock. The step that a plan is compared
with is as long as a measured profile says. One core, garbage collection as in production; each run
in a process of its own, the builds of the engine in turns (compiled where `make compiled` has made
it). `python -m benchmarks.plan_latency`
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count, product
from typing import Any

from benchmarks import bounds
from benchmarks.claims import Claim, render, write_results
from benchmarks.engine_builds import builds, run_in, this_build
from weir_cli.loadlab.records import LatencyStats, latency_stats
from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.ids import RequestClass, RequestId
from weir_engine.kv.manager import KvManager
from weir_engine.kv.view import PrefixHit
from weir_engine.pool.offline_pool import OfflinePool
from weir_engine.presets import build_scheduler
from weir_engine.request import Request
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sched.scheduler import Scheduler
from weir_engine.sim.profile_cost import ProfileCost, batch_of
from weir_engine.sim.profiles import load_profile

BLOCK_TOKENS = 16
BLOCKS = 60_000
DOCUMENT_TOKENS = 1_504
RUNNING = 256
ONLINE = 64
TARGETS_MS = {10_000: "<= 1", 50_000: "<= 0.5"}
TARGET_SHARE = "<= 1"
PROFILE = "rtx-pro-6000-llama-3.1-8b"


class ClockEngine:
    """Obeys plans exactly and takes the time that a linear cost says."""

    def __init__(self, pooled: int, seed: int) -> None:
        self.now_s = 0.0
        self._source = random.Random(seed)  # noqa: S311 - load, not secrets
        self._names = count()
        self._live: dict[RequestId, Request] = {}
        self._cost = ProfileCost(profile=load_profile(PROFILE))
        self._lines = self._offline()
        self.kv = KvManager(total_blocks=BLOCKS, block_size_tokens=BLOCK_TOKENS)
        self.scheduler: Scheduler = build_scheduler(
            "weir",
            shape=EngineShape(
                block_size_tokens=BLOCK_TOKENS,
                total_blocks=BLOCKS,
                max_batched_tokens=8_192,
                max_seqs=RUNNING,
                max_model_len_tokens=8_192,
            ),
            slos=[Slo(metric=Metric.TBT, statistic="p99", threshold_s=0.2)],
            kv=self.kv,
            pool=OfflinePool(),
            policy=Policy(offline_kv_blocks=BLOCKS, offline_seq_slots=RUNNING),
        )
        for _ in range(ONLINE):
            self._add(self._request(RequestClass.ONLINE, 400, 200, None))
        for _ in range(pooled):
            self._add(next(self._lines))

    def _offline(self) -> Iterator[Request]:
        for number in count():
            yield self._request(
                RequestClass.OFFLINE, DOCUMENT_TOKENS + 48, 64, f"document-{number // 15}"
            )

    def _request(
        self, klass: RequestClass, prompt_tokens: int, output_tokens: int, document: str | None
    ) -> Request:
        name = RequestId(f"{klass.name.lower()}-{next(self._names)}")
        shared = DOCUMENT_TOKENS // BLOCK_TOKENS if document else 0
        return Request(
            id=name,
            klass=klass,
            arrival_s=self.now_s,
            prompt_tokens=prompt_tokens,
            max_output_tokens=max(2, round(output_tokens * self._source.uniform(0.5, 1.5))),
            block_hashes=[
                hash((document if index < shared else name, index))
                for index in range((prompt_tokens + 2 * output_tokens) // BLOCK_TOKENS)
            ],
            group=document,
        )

    def _add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.kv.expect(request)
        self._live[request.id] = request

    def step(self) -> tuple[float, float]:
        """One step; returns the seconds that `plan` took, and those of the step on the profile."""
        started = time.perf_counter()
        plan = self.scheduler.plan(self.now_s)
        took_s = time.perf_counter() - started
        parts = [
            (work.tokens, self._live[work.request_id].computed_tokens + work.hit_tokens, False)
            for work in plan.work
        ]
        self._obey(plan)
        return took_s, self._cost.step_s(batch_of(parts))

    def _obey(self, plan: StepPlan) -> None:
        for gone in plan.preempt:
            self.kv.preempt(self._live[gone.request_id])
        for work in plan.work:
            hit = PrefixHit(tokens=work.hit_tokens, free_blocks=0) if work.admitted else None
            self.kv.allocate(self._live[work.request_id], new_tokens=work.tokens, hit=hit)
        self.scheduler.begin(plan)
        tokens: dict[RequestId, int] = {}
        finished = []
        for work in plan.work:
            request = self._live[work.request_id]
            self.kv.commit(request)
            if request.remaining_tokens == 1 and request.output_tokens:
                tokens[request.id] = 1
                if request.output_tokens >= request.max_output_tokens:
                    finished.append(request)
        started_s = self.now_s
        self.now_s += 0.005 + 5e-5 * plan.shape.tokens if plan.work else plan.idle_s or 0.01
        self.scheduler.commit(
            plan,
            StepOutcome(
                started_s=started_s,
                ended_s=self.now_s,
                tokens=tokens,
                finished=frozenset(request.id for request in finished),
            ),
        )
        for request in finished:
            self.kv.free(request.id)
            del self._live[request.id]
            if request.is_online:
                self._add(self._request(RequestClass.ONLINE, 400, 200, None))
            else:
                self._add(next(self._lines))


def measure(pooled: int, *, steps: int, seed: int) -> tuple[LatencyStats, LatencyStats]:
    """Time of `plan` over ``steps`` steps with all slots taken, and its share of each step."""
    engine = ClockEngine(pooled, seed)
    for _ in range(400):
        engine.step()
        if len(engine.scheduler.state.running) >= RUNNING:
            break
    for _ in range(50):
        engine.step()
    timed = [engine.step() for _ in range(steps)]
    return (
        latency_stats(plan_s for plan_s, _ in timed),
        latency_stats(plan_s / step_s for plan_s, step_s in timed),
    )


def claim_of(pooled: int, build: str, runs: Sequence[dict[str, Any]]) -> Claim:
    """The median run's P99; its median as what to compare with."""
    p99_ms = sorted(run["p99_ms"] for run in runs)
    p50_ms = sorted(run["p50_ms"] for run in runs)
    suffix = "" if build == "interpreted" else f"-{build}"
    return Claim(
        id=f"plan/p99-{pooled}{suffix}",
        what=f"plan() with {RUNNING} running and {pooled:,} pooled requests, P99, {build}",
        unit="ms",
        value=p99_ms[len(p99_ms) // 2],
        low=p99_ms[0],
        high=p99_ms[-1],
        baseline=p50_ms[len(p50_ms) // 2],
        target=TARGETS_MS[pooled],
    )


def share_of(pooled: int, build: str, runs: Sequence[dict[str, Any]]) -> Claim:
    """The median run's P99 over steps; its median as what to compare with."""
    p99 = sorted(run["p99_share"] for run in runs)
    p50 = sorted(run["p50_share"] for run in runs)
    suffix = "" if build == "interpreted" else f"-{build}"
    return Claim(
        id=f"plan/share-{pooled}{suffix}",
        what=f"the same over its step, as long as on profile {PROFILE}, "
        f"{pooled:,} pooled, P99, {build}",
        unit="%",
        value=100 * p99[len(p99) // 2],
        low=100 * p99[0],
        high=100 * p99[-1],
        baseline=100 * p50[len(p50) // 2],
        target=TARGET_SHARE,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures both pool sizes on each build and writes `results/plan_latency.json`."""
    parser = argparse.ArgumentParser(description="time of Scheduler.plan()")
    parser.add_argument("--steps", type=bounds.count, default=2_000)
    parser.add_argument("--repeats", type=bounds.count, default=3)
    parser.add_argument("--pooled", type=bounds.count, help="one run here; prints it as JSON")
    parser.add_argument("--seed", type=int, default=0, help="of the run that --pooled asks for")
    given = parser.parse_args(arguments)
    if given.pooled:
        took, share = measure(given.pooled, steps=given.steps, seed=given.seed)
        run = {
            "build": this_build(),
            "p50_ms": 1e3 * took.p50_s,
            "p99_ms": 1e3 * took.p99_s,
            "p50_share": share.p50_s,
            "p99_share": share.p99_s,
        }
        print(json.dumps(run))
        return 0
    runs: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for pooled, seed, build in product(TARGETS_MS, range(given.repeats), builds()):
        what = ["--pooled", str(pooled), "--seed", str(seed), "--steps", str(given.steps)]
        runs[pooled, build].append(run_in(build, "benchmarks.plan_latency", what))
    claims = [claim_of(pooled, build, each) for (pooled, build), each in runs.items()]
    claims += [share_of(pooled, build, each) for (pooled, build), each in runs.items()]
    write_results(
        "plan_latency",
        claims,
        command=shlex.join(
            ["python", "-m", "benchmarks.plan_latency", *(arguments or sys.argv[1:])]
        ),
        seeds=list(range(given.repeats)),
        more={"builds": list(builds())},
    )
    print(render(claims))
    return 0


if __name__ == "__main__":
    sys.exit(main())
