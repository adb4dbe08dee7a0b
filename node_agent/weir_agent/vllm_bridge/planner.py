"""The scheduler that the bridge drives, as it sees it, and how it is built from settings.

The decisions are ``weir_engine``'s.
"""

import random
from collections.abc import Callable
from typing import Any, Protocol

from weir_agent.kept_profile import KeptProfile
from weir_agent.vllm_bridge.messages import BridgeSettings
from weir_engine import presets
from weir_engine.config import ONLINE_ONLY, EngineShape, Policy
from weir_engine.ids import RequestId
from weir_engine.kv.view import KvView
from weir_engine.latency import models
from weir_engine.latency.models import AttentionModel, GraphedModel, LatencyModel
from weir_engine.pool.offline_pool import OfflinePool
from weir_engine.pool.simple_orders import FcfsOrder
from weir_engine.request import Request
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sched.selection import OfflineOrder


class Planner(Protocol):
    """What the bridge needs of ``weir_engine.sched.scheduler.Scheduler``."""

    def add(self, request: Request) -> None:
        """A request arrives."""
        ...

    def abort(self, request_id: RequestId) -> None:
        """A request ends from outside."""
        ...

    def set_policy(self, policy: Policy) -> None:
        """Replace the policy."""
        ...

    def plan(self, now_s: float) -> StepPlan:
        """Decide the next step; changes nothing."""
        ...

    def begin(self, plan: StepPlan) -> None:
        """The plan was sent to the engine."""
        ...

    def commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """The step ended."""
        ...

    def preempted(self, request_id: RequestId, *, output_tokens: int) -> None:
        """The engine took a request's blocks back without a plan."""
        ...

    def telemetry(self) -> dict[str, Any]:
        """Sums and levels as plain types."""
        ...


PlannerFactory = Callable[[BridgeSettings, EngineShape, KvView, Policy], Planner]


def build_planner(
    settings: BridgeSettings,
    shape: EngineShape,
    kv: KvView,
    policy: Policy = ONLINE_ONLY,
    *,
    graph_tokens: int = 0,
) -> Planner:
    """The scheduler of the settings' preset; ``graph_tokens`` as in ``GraphedModel``.

    Raises:
        ConfigError: the preset or the saved latency profile is not usable.
    """
    model: LatencyModel | None = None
    profile = settings.profile
    name = presets.SEATS[settings.preset].model if settings.preset in presets.SEATS else ""
    if graph_tokens and name == AttentionModel.name:
        name, model = GraphedModel.name, GraphedModel(graph_tokens=graph_tokens)
    if profile is None and settings.kept is not None and name:
        kept = KeptProfile(settings.kept.folder, identity=settings.kept.identity)
        profile = kept.read(model=name)
    if profile is not None:
        model = models.create(str(profile.get("model", "")), profile)
    return presets.build_scheduler(
        settings.preset,
        shape=shape,
        slos=[slo.slo() for slo in settings.slos],
        kv=kv,
        model=model,
        pool=_offline_order(settings),
        policy=policy,
        static_budget_s=settings.static_budget_s,
        over_alone=settings.over_alone,
    )


def _offline_order(settings: BridgeSettings) -> OfflineOrder:
    if settings.offline_order == "arrival":
        return FcfsOrder()
    return OfflinePool(
        utility_ratio=settings.utility_ratio,
        stale_s=settings.stale_s,
        rng=random.Random(settings.seed).random,  # noqa: S311 - an order, not a secret
    )
