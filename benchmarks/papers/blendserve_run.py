"""One run of one arm of BlendServe's comparison: the production scheduler over a whole batch.

Arms differ in the order of requests and in the backend; scheduler, KV manager, profile and batch
are the same. What is claimed of the runs is in ``blendserve_report``.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from benchmarks.papers.blendserve_case import RESERVE, Arm, Case, Outcome
from benchmarks.papers.blendserve_feeder import WINDOW, BlendFeeder, PacedFeeder
from benchmarks.papers.blendserve_units import Units
from weir_engine.config import EngineShape, Policy
from weir_engine.errors import InvariantError
from weir_engine.ids import RequestClass
from weir_engine.kv.manager import KvManager
from weir_engine.latency.models.batch_only import BatchOnlyModel
from weir_engine.pool.blend_work import context_read_tokens
from weir_engine.pool.simple_orders import FcfsOrder
from weir_engine.presets import SEATS, build_scheduler
from weir_engine.sched.plan import StepPlan
from weir_engine.sched.scheduler import Scheduler
from weir_engine.sched.selection import OfflineOrder
from weir_engine.sim.baselines import StockScheduler
from weir_engine.sim.batch import (
    BatchEngine,
    BatchKv,
    BatchSet,
    CoarseCost,
    CoarsePool,
    OrderFeeder,
)
from weir_engine.sim.loop import Feeder, Planner, Simulation
from weir_engine.sim.profile_cost import ProfileCost
from weir_engine.sim.profiles import StepBatch
from weir_engine.sim.records import SimResult

_STEP_TOKENS = 2048


def run_arm(case: Case, arm: Arm) -> Outcome:
    """Simulate the whole batch under one arm.

    Raises:
        InvariantError: requests were left over; a defect of the scheduler.
    """
    units = Units.of(case)
    arm = _where_it_pays(case, arm)
    batch = units.batch(arm)
    block_tokens = units.workload.block_tokens
    shape = EngineShape(
        block_size_tokens=block_tokens,
        total_blocks=case.kv_tokens // (block_tokens * case.factor),
        max_batched_tokens=_STEP_TOKENS,
        max_seqs=arm.max_seqs,
        max_model_len_tokens=1 << 20,
    )
    kv = BatchKv(
        total_blocks=shape.total_blocks,
        block_size_tokens=shape.block_size_tokens,
        eviction=SEATS[_preset(arm)].eviction,
    )
    backend = ProfileCost(profile=case.profile, backend=arm.backend, interference=case.interference)
    cost = CoarseCost(backend, factor=case.factor, multiple=arm.multiple)
    scheduler, feeder = _scheduler(case, arm, units, batch, shape, kv)
    engine = BatchEngine(
        kv=kv, cost=cost, rng=np.random.default_rng(case.seed), batch=batch, counted=arm.weir
    )
    result = Simulation(scheduler=scheduler, engine=engine, online=(), offline=feeder).run(
        until_s=inf
    )
    requests = len(units.workload)
    if result.offline_finished != requests:
        raise InvariantError(f"{arm.name}: {result.offline_finished} of {requests} ended")
    return _outcome(case, units, result, cost, backend, engine)


def _scheduler(
    case: Case,
    arm: Arm,
    units: Units,
    batch: BatchSet,
    shape: EngineShape,
    kv: KvManager,
) -> tuple[Planner, Feeder]:
    if arm.order == "blend":
        blended = BlendFeeder(case, batch)
        return _weir(arm, case.factor, shape, kv, blended.pool), blended
    if arm.order == "paced":
        paced = PacedFeeder(case, batch)
        return _weir(arm, case.factor, shape, kv, paced.pool), paced
    places = units.tree.depth_first(np.zeros(units.tree.nodes))
    if arm.order == "shuffled":
        places = np.random.default_rng((case.seed, 9)).permutation(len(units.prompts))
    if arm.stock:
        stock = StockScheduler(shape, kv, step_tokens=_STEP_TOKENS, by_class=False)
        room = arm.max_seqs
        return stock, OrderFeeder(
            batch, places.tolist(), waiting=lambda unfinished: max(unfinished - room, 0)
        )
    pool = FcfsOrder()
    feeder = OrderFeeder(batch, places.tolist(), waiting=lambda _: len(pool), window=WINDOW)
    return _weir(arm, case.factor, shape, kv, pool), feeder


class AskedAgain:
    """A scheduler that is asked again at once after a plan that only preempts."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.add = scheduler.add
        self.begin = scheduler.begin
        self.commit = scheduler.commit

    def plan(self, now_s: float) -> StepPlan:
        """The scheduler's plan."""
        plan = self._scheduler.plan(now_s)
        return plan._replace(idle_s=0.0) if plan.preempt and not plan.work else plan


def _weir(arm: Arm, factor: int, shape: EngineShape, kv: KvManager, pool: OfflineOrder) -> Planner:
    scheduler = build_scheduler(
        _preset(arm),
        shape=shape,
        slos=(),
        kv=kv,
        model=BatchOnlyModel(),
        pool=CoarsePool(pool, factor=factor),
        policy=Policy(offline_kv_blocks=shape.total_blocks, offline_seq_slots=arm.max_seqs),
    )
    return AskedAgain(scheduler)


def _where_it_pays(case: Case, arm: Arm) -> Arm:
    """Weir's keeps both lanes busy where the measured kernels say that it pays, else not."""
    if arm.order != "paced":
        return arm
    backend = ProfileCost(profile=case.profile, backend=arm.backend, interference=case.interference)
    if blending_pays(backend, case.kv_tokens):
        return arm
    return replace(arm, order="dfs", reserve=RESERVE)


def blending_pays(cost: ProfileCost, kv_tokens: int) -> bool:
    """Whether prompts beside long outputs take less time than each of them in steps of its own.

    Three quarters of the KV memory in 64 contexts of 500 tokens and more, 512 tokens of prompts.
    """
    context, decodes, prompt = kv_tokens * 3 // 4, 64, 512
    held = (decodes, context, 500, 4 * context // decodes)
    both_s = cost.step_s(StepBatch(prompt + decodes, [(prompt, 0)], *held))
    decodes_s = cost.step_s(StepBatch(decodes, [], *held))
    prompts_s = cost.step_s(StepBatch(_STEP_TOKENS, [(_STEP_TOKENS, 0)], 0, 0, 0, 0))
    return both_s < decodes_s + prompts_s * prompt / _STEP_TOKENS


def _preset(arm: Arm) -> str:
    """Of the scheduler and of the cache; stock rules have LRU too."""
    if arm.weir:
        return "weir"
    return "blendserve" if arm.order == "blend" else "sarathi"


def _outcome(
    case: Case,
    units: Units,
    result: SimResult,
    cost: CoarseCost,
    backend: ProfileCost,
    engine: BatchEngine,
) -> Outcome:
    prompt_tokens = int(units.prompts.tokens.sum())
    full = StepBatch(_STEP_TOKENS, [], 0, 0, 0, 0)
    token_s = case.profile.timing.step(full).dense_s / _STEP_TOKENS
    private = case.workload.prompt_tokens.sum() * (1 - units.tree.root_sharing)
    computed = float(private + case.workload.output_tokens.sum())
    best_s = computed * token_s + cost.prefill_s
    return Outcome(
        tokens=case.workload.tokens,
        seconds=result.steps[-1].ended_s,
        sharing=engine.kv.hit_counts(RequestClass.OFFLINE).hit_tokens / prompt_tokens,
        best_sharing=units.tree.root_sharing,
        steps=len(result.steps),
        preemptions=result.preemptions,
        compute_s=cost.compute_s,
        memory_s=cost.memory_s,
        optimum_s=_together_s(backend, best_s, cost.memory_s),
        bound_s=_together_s(backend, best_s, cost.memory_s + _weights_s(case)),
        reached_optimum_s=_together_s(backend, cost.compute_s, cost.memory_s),
    )


def _weights_s(case: Case) -> float:
    """Reading the weights once a step, in no more steps than any order needs."""
    decodes = (case.workload.output_tokens - 1).astype(np.float64)
    reads = context_read_tokens(case.workload.prompt_tokens.astype(np.float64), decodes)
    steps = max(float(decodes.max()), float(reads.sum()) / case.kv_tokens)
    return steps * case.profile.timing.step(StepBatch(1, [], 0, 0, 0, 0)).weights_s


def _together_s(backend: ProfileCost, compute_s: float, memory_s: float) -> float:
    return backend.interference.together_s(compute_s, memory_s, compute_s + memory_s)
