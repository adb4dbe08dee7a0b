"""Puts one simulated replica together: scheduler, KV manager, engine, offline source.

Settings in, collaborators out. The decisions are the production scheduler's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from weir_engine.config import ONLINE_ONLY, EngineShape, Policy, Slo
from weir_engine.kv.eviction import ClassedEviction, EvictionPolicy
from weir_engine.kv.manager import KvManager
from weir_engine.latency.models import LatencyModel, ModulewiseModel, create
from weir_engine.latency.profile import profile_shapes
from weir_engine.latency.swap import SwapModel
from weir_engine.pool.offline_pool import OfflinePool
from weir_engine.sched.budget import SloBudget, StepBudget
from weir_engine.sched.order import Fcfs, OnlineOrder
from weir_engine.sched.scheduler import Scheduler
from weir_engine.sched.seats import Seats
from weir_engine.sched.selection import OfflineOrder
from weir_engine.sim.cost import Part, StepCost
from weir_engine.sim.cpu_lane import AttentionLane
from weir_engine.sim.engine import SimEngine
from weir_engine.sim.loop import Feeder, Planner, Simulation, Window
from weir_engine.sim.profile_cost import ProfileCost
from weir_engine.sim.profile_probe import ProfileProbe
from weir_engine.sim.records import SimResult
from weir_engine.sim.workload import RequestSpec

SMALL_CPU = EngineShape(
    block_size_tokens=32,
    total_blocks=750,
    max_batched_tokens=2048,
    max_seqs=64,
    max_model_len_tokens=4096,
)
"""The engine of the first measurement on two CPU cores."""


_GUARDED = ClassedEviction(guard_online=True)


class Limits(TypedDict):
    """What an engine takes at most, as profiling asks for it."""

    max_batched_tokens: int
    max_seqs: int
    max_model_len_tokens: int


PlannerFactory = Callable[[EngineShape, KvManager], Planner]


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One engine to simulate.

    ``profiled`` starts the latency model from the steps that an agent measures at start, as
    ``cost`` times them. ``seed`` draws the noise of the steps. ``manager`` lays the KV blocks out;
    ``guard_blocks`` and ``prefix_cache``: see ``KvManager``; ``plan_s``, ``plan_request_s``,
    ``asynchronous`` and ``queued``: see ``Simulation``.
    """

    cost: StepCost
    shape: EngineShape = SMALL_CPU
    slos: Sequence[Slo] = ()
    policy: Policy = ONLINE_ONLY
    model: str = "attention"
    profiled: bool = True
    budget: Callable[[LatencyModel], StepBudget] | None = None
    order: Callable[[], OnlineOrder] = Fcfs
    pool: Callable[[], OfflineOrder] = OfflinePool
    eviction: EvictionPolicy = _GUARDED
    guard_blocks: int = 0
    manager: Callable[..., KvManager] = KvManager
    prefix_cache: bool = True
    plan_s: float = 0.0
    plan_request_s: float = 0.0
    asynchronous: bool = False
    queued: int = 0
    seed: int = 0

    def simulate(
        self,
        *,
        online: tuple[RequestSpec, ...] = (),
        offline: tuple[RequestSpec, ...] | Feeder = (),
        until_s: float,
        planner: PlannerFactory | None = None,
    ) -> SimResult:
        """One run, offline requests in the order given; under Weir's scheduler or another one."""
        return self.simulation(online=online, offline=offline, planner=planner).run(until_s=until_s)

    def simulation(
        self,
        *,
        online: tuple[RequestSpec, ...] = (),
        offline: tuple[RequestSpec, ...] | Feeder = (),
        planner: PlannerFactory | None = None,
        lane: AttentionLane | None = None,
    ) -> Simulation:
        """A run that has yet to start, for callers that drive it themselves.

        ``lane`` is attention on host CPUs, which the ``planner`` then knows too.
        """
        kv = self.manager(
            total_blocks=self.shape.total_blocks,
            block_size_tokens=self.shape.block_size_tokens,
            eviction=self.eviction,
            guard_blocks=self.guard_blocks,
            prefix_cache=self.prefix_cache,
        )
        if isinstance(offline, tuple):
            offline = Window(offline, size=self.window_size)
        make = planner or self.scheduler
        rng = np.random.default_rng((self.seed, 1))
        return Simulation(
            scheduler=make(self.shape, kv),
            engine=SimEngine(kv=kv, cost=self.cost, rng=rng, lane=lane, swap=self.swap),
            online=online,
            offline=offline,
            plan_s=self.plan_s,
            plan_request_s=self.plan_request_s,
            asynchronous=self.asynchronous,
            queued=self.queued,
        )

    @property
    def window_size(self) -> int:
        """Offline requests that the engine is given at a time."""
        return 4 * max(self.policy.offline_seq_slots, 1)

    @property
    def swap(self) -> SwapModel:
        """What copying KV between host and device takes: the link of the profile."""
        if isinstance(self.cost, ProfileCost):
            return SwapModel(slot_s=self.cost.profile.swap_s(1))
        return SwapModel()

    def latency_model(self) -> LatencyModel:
        """The model as it is when the first request arrives."""
        model = create(self.model)
        if self.profiled:
            rng = np.random.default_rng((self.seed, 2))
            limits = Limits(
                max_batched_tokens=self.shape.max_batched_tokens,
                max_seqs=self.shape.max_seqs,
                max_model_len_tokens=self.shape.max_model_len_tokens,
            )
            if self.model == ModulewiseModel.name and isinstance(self.cost, ProfileCost):
                model = ModulewiseModel.profiled(ProfileProbe(self.cost.profile, rng), **limits)
            for step in profile_shapes(**limits):
                parts = [Part(tokens=n, computed_tokens=done) for n, done in step.prefills]
                parts += [Part(tokens=1, computed_tokens=context) for context in step.decodes]
                model.update(step.shape, self.cost.seconds(parts, rng))
            model.refit()
        return model

    def scheduler(self, shape: EngineShape, kv: KvManager) -> Scheduler:
        """The production scheduler over ``kv``, with this replica's seats."""
        model = self.latency_model()
        budget = self.budget(model) if self.budget else SloBudget(self.slos, model)
        seats = Seats(model=model, budget=budget, order=self.order(), pool=self.pool())
        return Scheduler(shape=shape, slos=self.slos, kv=kv, seats=seats, policy=self.policy)
