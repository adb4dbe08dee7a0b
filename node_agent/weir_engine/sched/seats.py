"""The seats of the scheduler: who decides what."""

from collections.abc import Callable
from dataclasses import dataclass

from weir_engine.latency.models import LatencyModel
from weir_engine.latency.swap import SwapModel
from weir_engine.sched.admission import Admission
from weir_engine.sched.budget import StepBudget
from weir_engine.sched.cpu_lane import CpuLaneView
from weir_engine.sched.fewest_late import FewestLate
from weir_engine.sched.gathering import PromptGathering
from weir_engine.sched.listener import StepListener
from weir_engine.sched.order import OnlineOrder
from weir_engine.sched.packing import Packing
from weir_engine.sched.selection import OfflineOrder
from weir_engine.sched.state import SchedulerState

_NO_TIME = SwapModel()


@dataclass(frozen=True, kw_only=True, slots=True)
class Seats:
    """Who decides what.

    ``model`` predicts how long a step takes, ``budget`` says how long it may take, ``order`` ranks
    online prefill, ``pool`` ranks offline requests that wait. ``listeners`` are told of events:
    seats that decide from what happened before. ``admission`` (None: every request is taken) turns
    online requests away, ``lane`` (None: there is none) is attention on host CPUs,
    ``prefill_first`` lets offline prompts go before offline decodes (None: where that serves many
    more tokens a second), ``gathering`` (None: none) keeps them until several slots are free, and
    with ``keeps_room`` they leave blocks free for online requests. ``overcommits``: where memory is
    short and time is not, they count on others to end before they need their last blocks.
    ``stagger_prompts``: where TTFT has an objective, a prompt that ends in a long step keeps other
    online prompts out of it, in a longer one only where prompts have ``joins_beside_decodes``.
    ``splits_steps``: prompts and decodes get steps of their own where mixing them costs more.
    ``fewest_late`` (None: nobody) orders online prompts instead of ``order``.
    ``swap`` is what copying KV slots back takes, where blocks are filled from both ends.
    ``packing`` (None: the two phases) puts both classes into a step at once.
    """

    model: LatencyModel
    budget: StepBudget
    order: OnlineOrder
    pool: OfflineOrder
    listeners: tuple[StepListener, ...] = ()
    admission: Admission | None = None
    lane: CpuLaneView | None = None
    prefill_first: bool | None = False
    gathering: PromptGathering | None = None
    keeps_room: bool = False
    overcommits: bool = False
    stagger_prompts: bool = True
    joins_beside_decodes: bool = False
    splits_steps: bool = False
    fewest_late: FewestLate | None = None
    swap: SwapModel = _NO_TIME
    packing: Callable[[SchedulerState], Packing] | None = None
