"""One run of one arm of BlendServe's comparison: the production scheduler over a whole batch.

Arms differ in the order of requests and in the backend; scheduler, KV manager, profile and batch
are the same. What is claimed of the runs is in ``blendserve``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.blendserve_workload import Source, Workload
from weir_engine.config import EngineShape, Policy
from weir_engine.errors import InvariantError
from weir_engine.ids import RequestClass, RequestId
from weir_engine.kv.manager import KvManager
from weir_engine.latency.models.batch_only import BatchOnlyModel
from weir_engine.pool.blend_order import (
    SAMPLED_SHARE,
    BlendOrder,
    blend,
    estimate_outputs,
    sample_requests,
)
from weir_engine.pool.density import DensityModel
from weir_engine.pool.density_tree import DensityTree, Prompts, build_tree
from weir_engine.pool.dual_scan import BlendHint, DualScanOrder, Side
from weir_engine.pool.simple_orders import FcfsOrder
from weir_engine.presets import SEATS, build_scheduler
from weir_engine.request import Request
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
from weir_engine.sim.profile_cost import Backend, Interference, ProfileCost
from weir_engine.sim.profiles import HardwareProfile, StepBatch
from weir_engine.sim.records import RequestRecord, SimResult
from weir_engine.sim.workload import RequestSpec

Ints = NDArray[np.int64]
_WINDOW = 1024
_CANDIDATES = 8  # times those of one step: a planned step stands for many
_STEP_TOKENS = 2048
_MAX_SEQS = 1024


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to run the batch.

    ``order``: ``dfs``, ``shuffled`` or ``blend``. ``stock``: vLLM's rules instead of Weir's
    scheduler. ``weir``: the preset of that name, its selection seat filled by the dual scanner.
    ``multiple``: step sizes in multiples of so many tokens. ``reserve``: the part of its expected
    output that KV memory is kept for when a request is admitted.
    """

    name: str
    order: str
    backend: Backend
    stock: bool = False
    weir: bool = False
    multiple: int = 1
    reserve: float = 1.0
    max_seqs: int = _MAX_SEQS


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload on a device. ``factor``: engine steps that one planned step stands for."""

    workload: Workload
    profile: HardwareProfile
    model: DensityModel
    kv_tokens: int
    factor: int
    interference: Interference
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to: seconds of simulated time, and what was shared.

    ``sharing``: prompt tokens found in the cache at first admission, over all prompt tokens;
    ``best_sharing`` what an unbounded cache would find. ``optimum_s``: both lanes at once all the
    time, with interference, all prompts shared as well as can be and dense layers in full steps;
    ``reached_optimum_s``: the same with dense layers as the run's steps computed them.
    """

    tokens: int
    seconds: float
    sharing: float
    best_sharing: float
    steps: int
    preemptions: int
    compute_s: float
    memory_s: float
    optimum_s: float
    reached_optimum_s: float

    @property
    def tokens_s(self) -> float:
        """Input and output tokens a second, as the paper counts throughput."""
        return self.tokens / self.seconds


class BlendFeeder:
    """Runs a sample of the batch, then the rest from both ends of the density order.

    Source: BlendServe §3: the overview's steps 1 to 4, in that order.
    """

    def __init__(self, case: Case, batch: BatchSet) -> None:
        self._case = case
        self._batch = batch
        # Densities of the batch as it is, not in the units that it is simulated in: an exam's two
        # tokens of output would count as a whole unit of them.
        self._prompts = prompts = case.workload.prompts()
        self._tree = tree = build_tree(prompts)
        known = case.workload.source == Source.VIDEO
        rng = np.random.default_rng((case.seed, 7))
        self._sampled = sample_requests(len(prompts), known=known, share=SAMPLED_SHARE, rng=rng)
        self._seen = self._sampled | known
        dfs = tree.depth_first(np.zeros(tree.nodes))
        self._sample = iter(dfs[self._sampled[dfs]].tolist())
        self._hints: dict[RequestId, BlendHint] = {}
        self._order: BlendOrder | None = None
        self._left = self._right = 0
        self.pool = DualScanOrder(target_density=1.0, hint=self._hint)

    def _hint(self, request: Request) -> BlendHint:
        return self._hints.pop(request.id)

    def take(self, *, now_s: float, unfinished: int) -> list[RequestSpec]:  # noqa: ARG002
        """Tops both sides up; between sample and rest the engine runs dry."""
        if self._order is None:
            given = self._take_sample()
            if given or unfinished:
                return given
            self._order = self._plan()
            self._right = len(self._order)
            self.pool.set_target(self._order.target_density)
        return [*self._take_side(self._order, Side.LEFT), *self._take_side(self._order, Side.RIGHT)]

    def online_ended(self, record: RequestRecord) -> None:
        """Makes no difference."""

    def _take_sample(self) -> list[RequestSpec]:
        missing = _WINDOW - len(self.pool)
        return [
            self._spec(number, BlendHint(side=Side.LEFT, density=1.0, held_tokens=1.0))
            for _, number in zip(range(missing), self._sample, strict=False)
        ]

    def _plan(self) -> BlendOrder:
        outputs = estimate_outputs(
            self._tree,
            outputs=self._case.workload.output_tokens.astype(np.float64),
            seen=self._seen,
        )
        order = blend(self._tree, self._prompts, outputs=outputs, model=self._case.model)
        rest = ~self._sampled[order.requests]
        self._held = self._held_tokens(outputs)
        return BlendOrder(
            requests=order.requests[rest],
            density=order.density[rest],
            compute_s=order.compute_s[rest],
            memory_s=order.memory_s[rest],
            family=order.family[rest],
            target_density=order.target_density,
        )

    def _held_tokens(self, outputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """KV that each request reads in a step on average, over the steps that it is there.

        A planned step stands for many: who needs two of them is simulated as if it stayed for all.
        """
        factor = self._case.factor
        stays = (np.maximum(outputs - 1, 0) / factor).round() * factor + factor
        return (self._prompts.tokens + outputs / 2) * outputs / stays

    def _take_side(self, order: BlendOrder, side: Side) -> Iterator[RequestSpec]:
        missing = _WINDOW - self.pool.waiting(side)
        for _ in range(min(missing, self._right - self._left)):
            if side is Side.LEFT:
                place, self._left = self._left, self._left + 1
            else:
                place = self._right = self._right - 1
            number = int(order.requests[place])
            hint = BlendHint(
                side=side,
                density=float(order.density[place]),
                held_tokens=float(self._held[number]),
            )
            yield self._spec(number, hint)

    def _spec(self, number: int, hint: BlendHint) -> RequestSpec:
        spec = self._batch.spec(number)
        self._hints[spec.id] = hint
        return spec


def run_arm(case: Case, arm: Arm) -> Outcome:
    """Simulate the whole batch under one arm.

    Raises:
        InvariantError: requests were left over; a defect of the scheduler.
    """
    coarse = case.workload.coarse(case.factor)
    prompts = coarse.prompts()
    tree = build_tree(prompts)
    batch = _batch_set(coarse, prompts, arm)
    shape = EngineShape(
        block_size_tokens=coarse.block_tokens,
        total_blocks=case.kv_tokens // (coarse.block_tokens * case.factor),
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
    scheduler, feeder = _scheduler(case, arm, batch, tree, prompts, shape, kv)
    engine = BatchEngine(
        kv=kv, cost=cost, rng=np.random.default_rng(case.seed), batch=batch, counted=arm.weir
    )
    result = Simulation(scheduler=scheduler, engine=engine, online=(), offline=feeder).run(
        until_s=inf
    )
    if result.offline_finished != len(coarse):
        raise InvariantError(f"{arm.name}: {result.offline_finished} of {len(coarse)} ended")
    return _outcome(case, result, cost, tree, prompts, backend, engine)


def _scheduler(  # noqa: PLR0913 - the arms' composition root
    case: Case,
    arm: Arm,
    batch: BatchSet,
    tree: DensityTree,
    prompts: Prompts,
    shape: EngineShape,
    kv: KvManager,
) -> tuple[Planner, Feeder]:
    order = _order(case, arm)
    if order == "blend":
        blended = BlendFeeder(case, batch)
        return _weir(arm, case.factor, shape, kv, blended.pool), blended
    places = tree.depth_first(np.zeros(tree.nodes))
    if order == "shuffled":
        places = np.random.default_rng((case.seed, 9)).permutation(len(prompts))
    if arm.stock:
        stock = StockScheduler(shape, kv, step_tokens=_STEP_TOKENS, by_class=False)
        room = arm.max_seqs
        return stock, OrderFeeder(
            batch, places.tolist(), waiting=lambda unfinished: max(unfinished - room, 0)
        )
    pool = FcfsOrder()
    feeder = OrderFeeder(batch, places.tolist(), waiting=lambda _: len(pool), window=_WINDOW)
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
        return replace(plan, idle_s=0.0) if plan.preempt and not plan.work else plan


def _weir(arm: Arm, factor: int, shape: EngineShape, kv: KvManager, pool: OfflineOrder) -> Planner:
    scheduler = build_scheduler(
        _preset(arm),
        shape=shape,
        slos=(),
        kv=kv,
        model=BatchOnlyModel(),
        pool=CoarsePool(pool, factor=min(factor, _CANDIDATES)),
        policy=Policy(offline_kv_blocks=shape.total_blocks, offline_seq_slots=arm.max_seqs),
    )
    return AskedAgain(scheduler)


def _order(case: Case, arm: Arm) -> str:
    """The arm's; Weir's blends where the measured kernels say that it pays."""
    if not arm.weir:
        return arm.order
    backend = ProfileCost(profile=case.profile, backend=arm.backend, interference=case.interference)
    return "blend" if blending_pays(backend, case.kv_tokens) else "dfs"


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


def _batch_set(coarse: Workload, prompts: Prompts, arm: Arm) -> BatchSet:
    """The batch in units.

    Only hashes that more than one request has are kept, except for the shuffled order: there all
    blocks compete for the cache.
    """
    shared = (coarse.system_tokens + coarse.header_tokens) // coarse.block_tokens
    if arm.order == "shuffled":
        shared = np.diff(prompts.offsets)
    offsets = np.r_[0, np.cumsum(shared)]
    at = np.arange(offsets[-1]) - np.repeat(offsets[:-1], shared)
    hashes = prompts.hashes[np.repeat(prompts.offsets[:-1], shared) + at]
    means = np.array(
        [
            float(coarse.output_tokens[coarse.source == s].mean())
            if (coarse.source == s).any()
            else 1.0
            for s in Source
        ]
    )
    expected = np.where(coarse.source == Source.VIDEO, coarse.output_tokens, means[coarse.source])
    return BatchSet(
        prompt_tokens=prompts.tokens,
        output_tokens=coarse.output_tokens,
        expected_tokens=np.maximum(np.round(arm.reserve * expected), 1).astype(np.int64),
        hashes=hashes,
        offsets=offsets,
    )


def _outcome(  # noqa: PLR0913
    case: Case,
    result: SimResult,
    cost: CoarseCost,
    tree: DensityTree,
    prompts: Prompts,
    backend: ProfileCost,
    engine: BatchEngine,
) -> Outcome:
    prompt_tokens = int(prompts.tokens.sum())
    full = StepBatch(_STEP_TOKENS, [], 0, 0, 0, 0)
    token_s = case.profile.timing.step(full).dense_s / _STEP_TOKENS
    private = case.workload.prompt_tokens.sum() * (1 - tree.root_sharing)
    computed = float(private + case.workload.output_tokens.sum())
    best_s = computed * token_s + cost.prefill_s
    return Outcome(
        tokens=case.workload.tokens,
        seconds=result.steps[-1].ended_s,
        sharing=engine.kv.hit_counts(RequestClass.OFFLINE).hit_tokens / prompt_tokens,
        best_sharing=tree.root_sharing,
        steps=len(result.steps),
        preemptions=result.preemptions,
        compute_s=cost.compute_s,
        memory_s=cost.memory_s,
        optimum_s=_together_s(backend, best_s, cost.memory_s),
        reached_optimum_s=_together_s(backend, cost.compute_s, cost.memory_s),
    )


def _together_s(backend: ProfileCost, compute_s: float, memory_s: float) -> float:
    return backend.interference.together_s(compute_s, memory_s, compute_s + memory_s)
