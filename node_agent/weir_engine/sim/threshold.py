"""The offline KV threshold from a forecast, as a control plane sends it: here in virtual time."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Protocol

from weir_engine.config import EngineShape, Policy
from weir_engine.errors import ConfigError
from weir_engine.ids import RequestId
from weir_engine.kv.manager import KvManager
from weir_engine.kv.reserve import threshold_blocks
from weir_engine.kv.reuse import OnlineReuse
from weir_engine.request import Request
from weir_engine.sched.plan import StepOutcome, StepPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class ThresholdSettings:
    """Online demand is sampled every ``interval_s`` over ``window_s``; mean + ``sigmas`` * std.

    With ``found_again`` what online requests are likely to find again is left free besides, and
    guarded with the rest.
    """

    interval_s: float = 5.0
    window_s: float = 3600.0
    sigmas: float = 2.0
    found_again: bool = False

    def __post_init__(self) -> None:
        if not (self.interval_s > 0 and self.window_s >= self.interval_s and self.sigmas >= 0):
            raise ConfigError(
                f"threshold is {self}: give interval_s above 0, window_s of at least that, and "
                "sigmas of 0 or more"
            )


class PolicyPlanner(Protocol):
    """A scheduler that takes policies."""

    def add(self, request: Request) -> None:
        """A request arrives."""
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

    def set_policy(self, policy: Policy) -> None:
        """Replace the policy."""
        ...


class ForecastThreshold:
    """A scheduler whose offline threshold leaves mean + k sigma of online's KV demand free.

    Demand is the blocks that some online request references. Before the first sample the whole
    threshold of ``policy`` holds; it is never exceeded.

    Source: Echo §5.3: the past hour, k = 2. What is found again: Weir.
    """

    def __init__(
        self, inner: PolicyPlanner, kv: KvManager, policy: Policy, settings: ThresholdSettings
    ) -> None:
        self._inner = inner
        self._kv = kv
        self._policy = policy
        self._settings = settings
        self._samples: deque[tuple[float, int]] = deque()
        self._next_s = 0.0
        self._now_s = 0.0
        self._reuse = OnlineReuse(kv.total_blocks) if settings.found_again else None
        self._online: dict[RequestId, Request] = {}

    @classmethod
    def over(
        cls,
        make: Callable[[EngineShape, KvManager], PolicyPlanner],
        policy: Policy,
        settings: ThresholdSettings,
    ) -> Callable[[EngineShape, KvManager], "ForecastThreshold"]:
        """The same scheduler with the forecast in charge."""
        return lambda shape, kv: cls(make(shape, kv), kv, policy, settings)

    def add(self, request: Request) -> None:
        """A request arrives."""
        if request.is_online and self._reuse is not None:
            self._online[request.id] = request
        self._inner.add(request)

    def plan(self, now_s: float) -> StepPlan:
        """Decide the next step; changes nothing."""
        self._now_s = now_s
        return self._inner.plan(now_s)

    def begin(self, plan: StepPlan) -> None:
        """The plan was sent to the engine."""
        self._inner.begin(plan)
        if self._reuse is None:
            return
        for work in plan.work:
            request = self._online.get(work.request_id) if work.admitted else None
            if request is not None and not request.preemptions:
                self._reuse.asked(request.block_hashes, self._now_s)

    def commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """The step ended; a sample that is due is taken and the threshold set."""
        self._inner.commit(plan, outcome)
        reuse = self._reuse
        if reuse is not None:
            for request_id in outcome.finished:
                if (request := self._online.pop(request_id, None)) is not None:
                    reuse.left(reversed(request.block_hashes), outcome.ended_s)
        if outcome.ended_s < self._next_s:
            return
        self._next_s = outcome.ended_s + self._settings.interval_s
        kv = self._kv
        self._samples.append(
            (outcome.ended_s, kv.total_blocks - kv.free_blocks - kv.offline_only_blocks)
        )
        while self._samples[0][0] < outcome.ended_s - self._settings.window_s:
            self._samples.popleft()
        held = [blocks for _, blocks in self._samples]
        demand = fmean(held) + self._settings.sigmas * pstdev(held)
        if reuse is not None:
            demand += reuse.kept_blocks(outcome.ended_s)
        allowed = threshold_blocks(total_blocks=kv.total_blocks, online_demand_blocks=demand)
        allowed = min(self._policy.offline_kv_blocks, allowed)
        self._inner.set_policy(replace(self._policy, offline_kv_blocks=allowed))
        if reuse is not None:
            kv.set_guard(kv.total_blocks - allowed)
