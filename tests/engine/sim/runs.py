"""A small replica and its workload, for tests that simulate."""

from dataclasses import dataclass, field

import numpy as np

from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.kv.manager import KvManager
from weir_engine.request import Request
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sim.cost import CPU_2_CORES
from weir_engine.sim.loop import Planner
from weir_engine.sim.replica import PlannerFactory, Replica
from weir_engine.sim.workload import (
    Documents,
    Lengths,
    RequestSpec,
    document_questions,
    online_requests,
    poisson_times,
)

SHAPE = EngineShape(
    block_size_tokens=16,
    total_blocks=120,
    max_batched_tokens=512,
    max_seqs=12,
    max_model_len_tokens=1024,
)
POLICY = Policy(offline_kv_blocks=90, offline_seq_slots=8)
SLOS = (Slo(metric=Metric.TBT, statistic="p99", threshold_s=0.06),)


def replica(seed: int = 0, slos: tuple[Slo, ...] = SLOS) -> Replica:
    return Replica(cost=CPU_2_CORES, shape=SHAPE, slos=slos, policy=POLICY, seed=seed)


def online(seed: int = 0, *, rate_s: float = 2.0, seconds: float = 20.0) -> tuple[RequestSpec, ...]:
    rng = np.random.default_rng((seed, 1))
    return online_requests(
        rng,
        poisson_times(rng, rate_s=rate_s, duration_s=seconds),
        prompt=Lengths(median=60, sigma=0.8, low=4, high=400),
        output=Lengths(median=12, sigma=0.5, low=1, high=40),
    )


def offline(seed: int = 0, count: int = 30, output: int = 10) -> tuple[RequestSpec, ...]:
    documents = Documents(
        count=count,
        questions=5,
        document=Lengths(median=200, sigma=0.3, low=40, high=500),
        question=Lengths(median=20, sigma=0.3, low=5, high=60),
        output=Lengths(median=output, sigma=0.4, low=1, high=3 * output),
    )
    specs = document_questions(np.random.default_rng((seed, 2)), documents)
    return tuple(sorted(specs, key=lambda spec: spec.group or ""))


@dataclass
class Watched:
    """A scheduler whose plans are kept, and whose KV sums are checked after every step."""

    inner: Planner
    kv: KvManager
    plans: list[StepPlan] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def add(self, request: Request) -> None:
        self.requests.append(request)
        self.inner.add(request)

    def plan(self, now_s: float) -> StepPlan:
        plan = self.inner.plan(now_s)
        self.plans.append(plan)
        return plan

    def begin(self, plan: StepPlan) -> None:
        self.inner.begin(plan)

    def commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
        self.inner.commit(plan, outcome)
        self.kv.check()


def watching(make: PlannerFactory, seen: list[Watched]) -> PlannerFactory:
    """The same planner, watched; it is put into ``seen`` when it is made."""

    def made(shape: EngineShape, kv: KvManager) -> Watched:
        seen.append(Watched(make(shape, kv), kv))
        return seen[-1]

    return made
