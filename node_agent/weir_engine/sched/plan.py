"""The decision of one step, and what became of it. Values only.

Every backend executes a ``StepPlan`` and answers with a ``StepOutcome``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from weir_engine.ids import RequestId
from weir_engine.latency.features import StepShape
from weir_engine.sched.step_kind import StepKind


class Work(NamedTuple):
    """One request's share of a step.

    ``tokens`` are computed in this step. ``admitted`` marks a request that was not running before;
    ``hit_tokens`` is then the prefix hit that the plan counts on. ``reason`` is one of a fixed set
    of short words, for traces and tests. A tuple, because a step makes hundreds.
    """

    request_id: RequestId
    tokens: int
    admitted: bool = False
    hit_tokens: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preemption:
    """A running request that gives its blocks back before the step; it resumes later.

    ``to_cpu``: its KV moves to host memory and it decodes on there (see ``StepPlan.piggyback``).
    """

    request_id: RequestId
    reason: str
    to_cpu: bool = False


class StepPlan(NamedTuple):
    """One step of the engine, decided. A tuple: every step makes one.

    ``work`` is in the order the engine must take it. Running requests that are not in it are held
    back this step (``held``). Blocks that hits of its admissions count on are kept once ``preempt``
    took effect, before anything else is allocated.

    ``limit_s`` is the longest the step was allowed to take and ``limit_reason`` the rule that set
    it; ``predicted_s`` is the median of the duration. ``work`` may be empty: nothing to do, or
    nothing that fits; ``idle_s`` then says when to ask again at the latest, None for an arrival.

    ``refused`` are online requests that admission turns away. ``recall`` are requests whose KV
    comes back from host memory; they run again when it is there. ``restore`` are requests with
    work whose overwritten KV slots are copied back before it (BROS §5.2). ``piggyback`` counts, by
    model layer, the attention results of the CPU lane that this step takes through its dense
    modules (empty: none), ``piggyback_s`` what they add to its predicted duration. ``kind`` is
    ``PREFILL`` where decodes wait for the next step, ``DECODE`` where prompts do.
    """

    step: int
    now_s: float
    shape: StepShape
    online_shape: StepShape
    work: tuple[Work, ...] = ()
    preempt: tuple[Preemption, ...] = ()
    held: tuple[RequestId, ...] = ()
    predicted_s: float = 0.0
    limit_s: float | None = None
    limit_reason: str = ""
    idle_s: float | None = None
    refused: tuple[RequestId, ...] = ()
    recall: tuple[RequestId, ...] = ()
    restore: tuple[RequestId, ...] = ()
    piggyback: tuple[int, ...] = ()
    piggyback_s: float = 0.0
    kind: StepKind = StepKind.HYBRID

    @property
    def computes(self) -> bool:
        """False for a plan that only moves requests, or does nothing."""
        return bool(self.work or self.piggyback)


class StepOutcome(NamedTuple):
    """What a step did. A tuple, too.

    ``tokens`` are the output tokens each request got (absent: none), ``finished`` the requests that
    ended with this step. ``started_s`` and ``ended_s`` are on the scheduler's clock; ``timed`` is
    False when the duration says nothing (the queue had run empty, a first step).
    """

    started_s: float
    ended_s: float
    tokens: Mapping[RequestId, int] = MappingProxyType({})
    finished: frozenset[RequestId] = frozenset()
    timed: bool = True
