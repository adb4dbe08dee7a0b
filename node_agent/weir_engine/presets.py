"""Schedulers as data: which collaborator fills which seat.

A preset chooses; it holds no logic of its own. Each is described in docs/presets.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from weir_engine.config import ONLINE_ONLY, EngineShape, Metric, Policy, Slo
from weir_engine.errors import ConfigError
from weir_engine.kv.bidirectional import BidirectionalKvManager
from weir_engine.kv.eviction import ClassedEviction, EvictionPolicy, LruEviction
from weir_engine.kv.manager import KvManager
from weir_engine.kv.view import KvView
from weir_engine.latency.features import EMPTY_SHAPE
from weir_engine.latency.models import LatencyModel, create
from weir_engine.latency.swap import SwapModel
from weir_engine.pool.dual_scan import DualScanOrder, hint_by_lengths
from weir_engine.pool.offline_pool import OfflinePool
from weir_engine.pool.simple_orders import FcfsOrder
from weir_engine.sched.admission import Admission, TtftAdmission
from weir_engine.sched.batch_size import DoublingBatchSize
from weir_engine.sched.benefit import BenefitSelection
from weir_engine.sched.budget import SloBudget, StaticBudget, StepBudget
from weir_engine.sched.cpu_lane import CpuLaneView
from weir_engine.sched.cumulative_budget import CumulativeBudget
from weir_engine.sched.fewest_late import FewestLate
from weir_engine.sched.gathering import PromptGathering
from weir_engine.sched.listener import StepListener
from weir_engine.sched.order import Fcfs, OnlineOrder
from weir_engine.sched.packing import Packing
from weir_engine.sched.priority_packing import PriorityPacking
from weir_engine.sched.profiled_budget import ProfiledBudget
from weir_engine.sched.remaining_time import RemainingTime
from weir_engine.sched.scheduler import Scheduler
from weir_engine.sched.seats import Seats
from weir_engine.sched.selection import OfflineOrder
from weir_engine.sched.state import SchedulerState
from weir_engine.sched.tpot_budget import TpotBudget

_CLASSED = ClassedEviction()
_BATCH_BASE = 128  # BROS §4.2

PackingFactory = Callable[[SchedulerState], Packing]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a preset may build its collaborators from."""

    shape: EngineShape
    slos: Sequence[Slo]
    kv: KvView
    model: LatencyModel
    static_budget_s: float | None
    over_alone: float | None
    tpot_from_arrival: bool
    swap: SwapModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """Who fills each seat. ``source`` names the paper.

    ``model`` is a name that ``latency.models`` knows. ``eviction`` is for whoever makes the KV
    manager, with ``manager``: the scheduler only reads it.
    """

    source: str
    budget: Callable[[Parts], StepBudget]
    pool: Callable[[Parts], OfflineOrder]
    model: str = "attention"
    order: Callable[[], OnlineOrder] = Fcfs
    eviction: EvictionPolicy = _CLASSED
    admission: Callable[[Parts], Admission] | None = None
    prefill_first: bool | None = False
    gather_prompts: bool = False
    keep_room: bool = False
    overcommit: bool = False
    stagger_prompts: bool = True
    full_bursts: bool = False
    fewest_late: bool = False
    split_steps: bool = False
    packing: Callable[[Parts], PackingFactory] | None = None
    manager: Callable[..., KvManager] = KvManager


def _slo_budget(parts: Parts) -> StepBudget:
    full = EMPTY_SHAPE.with_prefill(parts.shape.max_batched_tokens, 0)
    return SloBudget(
        parts.slos,
        parts.model,
        prompt_step_s=lambda: parts.model.predict(full),
        over_alone=parts.over_alone,
        tpot_from_arrival=parts.tpot_from_arrival,
    )


def _static_budget(parts: Parts) -> StepBudget:
    if parts.static_budget_s is None:
        raise ConfigError("preset 'hygen' needs static_budget_s, found by profiling")
    return ProfiledBudget(parts.static_budget_s)


def _no_budget(parts: Parts) -> StepBudget:  # noqa: ARG001 - bounded by the engine's tokens alone
    return StaticBudget(inf)


def _cumulative_budget(parts: Parts) -> StepBudget:
    return CumulativeBudget(parts.slos)


def _tpot_budget(parts: Parts) -> StepBudget:
    return TpotBudget(parts.slos, parts.model)


def _ttft_admission(parts: Parts) -> Admission:
    most = parts.shape.max_batched_tokens
    return TtftAdmission(parts.slos, parts.model, max_batched_tokens=most)


def _priority_packing(parts: Parts) -> PackingFactory:
    shape = parts.shape
    remaining = RemainingTime(parts.slos, step_tokens=shape.max_batched_tokens)
    tpot_s = min(slo.threshold_s for slo in parts.slos if slo.metric is Metric.TPOT)
    batch = DoublingBatchSize(base=min(_BATCH_BASE, shape.max_seqs), most=shape.max_seqs)

    def make(state: SchedulerState) -> Packing:
        return PriorityPacking(
            state,
            model=parts.model,
            remaining=remaining,
            batch=batch,
            swap=parts.swap,
            tpot_s=tpot_s,
        )

    return make


def _fewest_late(slos: Sequence[Slo]) -> FewestLate | None:
    tails = [s for s in slos if s.metric is Metric.TTFT and not s.is_mean]
    if not tails:
        return None
    tightest = min(tails, key=lambda slo: slo.threshold_s)
    return FewestLate(tightest.threshold_s, quantile=tightest.quantile)


def _has_ttft_mean(slos: Sequence[Slo]) -> bool:
    return any(slo.metric is Metric.TTFT and slo.is_mean for slo in slos)


def _by_prefix(parts: Parts) -> OfflineOrder:  # noqa: ARG001
    return OfflinePool()


def _by_arrival(parts: Parts) -> OfflineOrder:  # noqa: ARG001
    return FcfsOrder()


def _by_benefit(parts: Parts) -> OfflineOrder:
    return BenefitSelection(
        kv=parts.kv,
        model=parts.model,
        block_size_tokens=parts.shape.block_size_tokens,
        step_tokens=parts.shape.max_batched_tokens,
    )


def _by_dual_scan(parts: Parts) -> OfflineOrder:  # noqa: ARG001
    return DualScanOrder(target_density=1.0, hint=hint_by_lengths)


SEATS: dict[str, Preset] = {
    "weir": Preset(
        source="design §3",
        budget=_slo_budget,
        pool=_by_prefix,
        eviction=ClassedEviction(guard_online=True),
        prefill_first=None,
        gather_prompts=True,
        keep_room=True,
        overcommit=True,
        full_bursts=True,
        fewest_late=True,
        split_steps=True,
    ),
    "hygen": Preset(
        source="HyGen §4",
        model="hygen",
        budget=_static_budget,
        pool=_by_prefix,
        eviction=LruEviction(),
    ),
    "sarathi": Preset(
        source="HyGen §5.1, Sarathi++: two phases, no budget",
        model="hygen",
        budget=_no_budget,
        pool=_by_arrival,
        eviction=LruEviction(),
    ),
    "echo": Preset(
        source="Echo §4, §5",
        model="echo",
        budget=_cumulative_budget,
        pool=_by_benefit,
    ),
    "echo-selection": Preset(
        source="Echo §7.1, BS+E+S",
        model="echo",
        budget=_cumulative_budget,
        pool=_by_benefit,
        eviction=LruEviction(),
    ),
    "echo-estimator": Preset(
        source="Echo §7.1, BS+E",
        model="echo",
        budget=_cumulative_budget,
        pool=_by_arrival,
        eviction=LruEviction(),
    ),
    "omniserve": Preset(
        source="OmniServe §3",
        model="modulewise",
        budget=_tpot_budget,
        pool=_by_arrival,
        admission=_ttft_admission,
        prefill_first=True,
        stagger_prompts=False,
    ),
    "sarathi-serve": Preset(
        source="OmniServe §5.1.3, baseline C: online first, chunked prefill, no budget",
        model="hygen",
        budget=_no_budget,
        pool=_by_arrival,
        eviction=LruEviction(),
        stagger_prompts=False,
    ),
    "bros": Preset(
        source="BROS §4, §5",
        model="bros",
        budget=_no_budget,  # the packing ends a step at the least remaining time
        pool=_by_arrival,
        eviction=LruEviction(),
        packing=_priority_packing,
        manager=BidirectionalKvManager,
    ),
    "bros-paged": Preset(
        source="BROS §7.4.1, without bidirectional blocks: recomputation",
        model="bros",
        budget=_no_budget,
        pool=_by_arrival,
        eviction=LruEviction(),
        packing=_priority_packing,
    ),
    "blendserve": Preset(
        source="BlendServe §3, batch work alone",
        model="hygen",
        budget=_no_budget,
        pool=_by_dual_scan,
        eviction=LruEviction(),
    ),
}

PRESETS = tuple(SEATS)
"""Names that ``build_scheduler`` knows."""


def build_scheduler(  # noqa: PLR0913 - the composition root
    preset: str,
    *,
    shape: EngineShape,
    slos: Sequence[Slo],
    kv: KvView,
    model: LatencyModel | None = None,
    pool: OfflineOrder | None = None,
    order: OnlineOrder | None = None,
    policy: Policy = ONLINE_ONLY,
    static_budget_s: float | None = None,
    over_alone: float | None = None,
    tpot_from_arrival: bool = False,
    lane: CpuLaneView | None = None,
    swap: SwapModel | None = None,
    may_refuse: bool = False,
) -> Scheduler:
    """A scheduler with the preset's collaborators.

    ``model``, ``pool`` and ``order`` (of online requests) replace the preset's own;
    ``static_budget_s`` is the step budget of ``hygen``, found by profiling. ``over_alone``: without
    ``slos``, preset ``weir`` keeps online means of TBT and TTFT within this share above what they
    would be alone (None: nothing bounds them). ``tpot_from_arrival``: it counts percentiles of TPOT
    as Echo does, token i by arrival + TTFT + i * TPOT. ``lane`` is attention on host CPUs where the
    engine has it, ``swap`` what copying KV to and from the host takes. ``may_refuse``: the engine
    can turn online requests away; without it no preset's admission is
    used.

    Raises:
        ConfigError: an unknown preset, or one that lacks what it needs.
    """
    if preset not in SEATS:
        raise ConfigError(f"preset is {preset!r}: give one of {', '.join(PRESETS)}")
    seats = SEATS[preset]
    parts = Parts(
        shape=shape,
        slos=slos,
        kv=kv,
        model=model or create(seats.model),
        static_budget_s=static_budget_s,
        over_alone=over_alone,
        tpot_from_arrival=tpot_from_arrival,
        swap=swap or SwapModel(),
    )
    pool = pool if pool is not None else seats.pool(parts)
    refuses = seats.admission if may_refuse else None
    admission = None if refuses is None else refuses(parts)
    gathering = PromptGathering(parts.model) if seats.gather_prompts else None
    late = _fewest_late(slos) if seats.fewest_late and order is None else None
    order = order if order is not None else seats.order()
    filled: tuple[object, ...] = (order, pool, admission, gathering, late)
    return Scheduler(
        shape=shape,
        slos=slos,
        kv=kv,
        seats=Seats(
            model=parts.model,
            budget=seats.budget(parts),
            order=order,
            pool=pool,
            listeners=tuple(seat for seat in filled if isinstance(seat, StepListener)),
            admission=admission,
            lane=lane,
            prefill_first=seats.prefill_first,
            gathering=gathering,
            keeps_room=seats.keep_room and (lane is not None or bool(slos)),
            overcommits=seats.overcommit and lane is None and bool(slos),
            stagger_prompts=seats.stagger_prompts,
            joins_beside_decodes=seats.full_bursts and not _has_ttft_mean(slos),
            splits_steps=seats.split_steps,
            fewest_late=late,
            swap=parts.swap,
            packing=None if seats.packing is None else seats.packing(parts),
        ),
        policy=policy,
    )
