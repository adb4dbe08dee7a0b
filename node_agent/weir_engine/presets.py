"""Schedulers as data: which collaborator fills which seat.

A preset chooses; it holds no logic of its own.
"""

from collections.abc import Sequence

from weir_engine.config import ONLINE_ONLY, EngineShape, Policy, Slo
from weir_engine.errors import ConfigError
from weir_engine.kv.view import KvView
from weir_engine.latency.models import LatencyModel, create
from weir_engine.pool.offline_pool import OfflinePool
from weir_engine.sched.budget import SloBudget, StaticBudget, StepBudget
from weir_engine.sched.order import Fcfs
from weir_engine.sched.scheduler import Scheduler, Seats
from weir_engine.sched.selection import OfflineOrder

PRESETS = ("weir", "hygen")
"""Names that ``build_scheduler`` knows; each is described in docs/presets.md."""


def build_scheduler(  # noqa: PLR0913 - the composition root
    preset: str,
    *,
    shape: EngineShape,
    slos: Sequence[Slo],
    kv: KvView,
    model: LatencyModel | None = None,
    pool: OfflineOrder | None = None,
    policy: Policy = ONLINE_ONLY,
    static_budget_s: float | None = None,
) -> Scheduler:
    """A scheduler with the preset's collaborators.

    ``weir``: accounts per objective, attention-aware latency model. ``hygen``: one static step
    budget (``static_budget_s``), HyGen's six features. ``pool`` orders offline requests (default:
    by shared prefix).

    Raises:
        ConfigError: an unknown preset, or ``hygen`` without a budget.
    """
    if preset not in PRESETS:
        raise ConfigError(f"preset is {preset!r}: give one of {', '.join(PRESETS)}")
    budget: StepBudget
    if preset == "hygen":
        if static_budget_s is None:
            raise ConfigError("preset 'hygen' needs static_budget_s, found by profiling")
        model = model or create("hygen")
        budget = StaticBudget(static_budget_s)
    else:
        model = model or create("attention")
        budget = SloBudget(slos, model)
    return Scheduler(
        shape=shape,
        slos=slos,
        kv=kv,
        seats=Seats(
            model=model,
            budget=budget,
            order=Fcfs(),
            pool=pool if pool is not None else OfflinePool(),
        ),
        policy=policy,
    )
