"""The scheduler: events in, one ``StepPlan`` a step out.

``plan`` decides from a snapshot and changes nothing; ``begin`` records that a plan was sent to the
engine, ``commit`` what became of it. Backends: vLLM, weir_torch, the simulator.
"""

from collections.abc import Sequence
from typing import Any

from weir_engine.config import ONLINE_ONLY, EngineShape, Metric, Policy, Slo
from weir_engine.errors import DuplicateRequestError
from weir_engine.ids import RequestId
from weir_engine.kv.view import KvView
from weir_engine.latency.models import LatencyModel
from weir_engine.request import Request
from weir_engine.sched.bookkeeping import Bookkeeping
from weir_engine.sched.budget import SloBudget, StepBudget
from weir_engine.sched.cumulative_budget import CumulativeBudget
from weir_engine.sched.listener import StepListener
from weir_engine.sched.pace import Pace
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sched.planning import Planning
from weir_engine.sched.seats import Seats
from weir_engine.sched.settlement import Settlement
from weir_engine.sched.state import Counters, SchedulerState
from weir_engine.sched.step_kind import StepKind
from weir_engine.sched.transitions import advance, count_finished, end, preempt

# A decode that is held back stays back for this many steps: requests that leave and rejoin the
# running batch cost the engine time. Where KV blocks are filled from both ends they do so anyway.
_HOLD_STEPS = 3


class Scheduler:
    """Online first, offline in what is left, within SLOs, blocks and slots.

    ``kv`` answers for blocks, ``seats`` hold who decides what. All times are seconds on one clock
    that the caller reads.

    Source: HyGen Algorithm 1 (two phases); design §3.
    """

    def __init__(
        self,
        *,
        shape: EngineShape,
        slos: Sequence[Slo],
        kv: KvView,
        seats: Seats,
        policy: Policy = ONLINE_ONLY,
    ) -> None:
        model, budget = seats.model, seats.budget
        self._slos = tuple(slos)
        self._fewest_late = seats.fewest_late
        self._state = state = SchedulerState(
            shape=shape, kv=kv, pool=seats.pool, lane=seats.lane, policy=policy
        )
        self._model = model
        self._budget = budget
        self._books = books = Bookkeeping(budget, model)
        self._pace = pace = Pace.of(slos, from_arrival=_from_arrival(budget))
        self._planning = planning = Planning(state, seats, slos=slos, books=books, pace=pace)
        packing: object = planning.packing
        own = (packing,) if isinstance(packing, StepListener) else ()
        self._listeners = (*seats.listeners, *own)
        self._hold_steps = 0 if planning.fills_from_both_ends else _HOLD_STEPS
        self._settlement = Settlement(state, model=model, books=books, pace=pace)

    @property
    def state(self) -> SchedulerState:
        """What it knows; for reading."""
        return self._state

    @property
    def counters(self) -> Counters:
        """Sums since the start."""
        return self._state.counters

    @property
    def model(self) -> LatencyModel:
        """The latency model it learns, with all that it was told."""
        self._books.settle()
        return self._model

    @property
    def policy(self) -> Policy:
        """The policy last set."""
        return self._state.policy

    def set_policy(self, policy: Policy) -> None:
        """Replace the policy; it binds the next plan."""
        self._books.settle()
        self._state.policy = policy
        if isinstance(self._budget, SloBudget):
            self._budget.set_client_delay(dict(policy.client_delay_s))
            if self._pace is not None:
                self._pace.set_client_delay(self._client_delay(policy, Metric.TPOT))
        if self._fewest_late is not None:
            self._fewest_late.set_client_delay(self._client_delay(policy, Metric.TTFT))

    def _client_delay(self, policy: Policy, metric: Metric) -> float:
        """That of the tightest objective on the metric, of percentiles where there are any."""
        slos = [slo for slo in self._slos if slo.metric is metric]
        tails = [slo for slo in slos if not slo.is_mean]
        tightest = min(tails or slos, key=lambda slo: slo.threshold_s, default=None)
        return 0.0 if tightest is None else policy.client_delay_s.get(tightest.name, 0.0)

    def add(self, request: Request) -> None:
        """A request arrives.

        Raises:
            DuplicateRequestError: its id is known already.
        """
        state = self._state
        if request.id in state.requests:
            raise DuplicateRequestError(f"request {request.id} is known already; use another id")
        state.requests[request.id] = request
        if request.is_online:
            state.waiting_online[request.id] = request
            self._settlement.arrived(request)
        else:
            state.pool.add(request)
        for listener in self._listeners:
            listener.on_add(request)

    def abort(self, request_id: RequestId) -> None:
        """A request ends from outside; an unknown id is ignored, for it may just have ended."""
        request = self._state.requests.get(request_id)
        if request is not None:
            self._end(request)

    def plan(self, now_s: float) -> StepPlan:
        """Decide the next step. Nothing changes."""
        return self._planning.plan(self._state.policy, now_s, self._settlement.busy_s(now_s))

    def begin(self, plan: StepPlan) -> None:
        """The plan was sent to the engine: preemptions, admissions and progress take effect."""
        state = self._state
        state.step = plan.step
        self._settlement.began(plan)
        self._planning.beginning(plan)
        for request_id in plan.refused:
            self._end(state.get(request_id))
        for preemption in plan.preempt:
            request = state.get(preemption.request_id)
            if preemption.to_cpu:
                state.leave_for_cpu(request)
            else:
                preempt(state, request)
        for request_id in plan.recall:
            state.return_from_cpu(state.get(request_id))
        advance(state, plan.work)
        self._hold(plan)
        self._planning.began(plan)
        for listener in self._listeners:
            listener.on_begin(plan, state.requests)

    def _hold(self, plan: StepPlan) -> None:
        """Who is held back stays so for some steps; what a step of prompts leaves out is next."""
        state = self._state
        prompts_alone = plan.kind is StepKind.PREFILL
        if plan.computes:
            state.decodes_wait = prompts_alone
        if not plan.work or prompts_alone or not self._hold_steps:
            return
        for request_id in plan.held:
            if state.held_until.get(request_id, 0) < plan.step:
                state.held_until[request_id] = plan.step + self._hold_steps

    def commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """A step ended: tokens arrive, requests finish, the models and accounts learn."""
        state = self._state
        self._settlement.step(plan, outcome)
        for listener in self._listeners:
            listener.on_commit(plan, outcome)
        self._settlement.tokens(outcome)
        for request_id in outcome.finished:
            request = state.requests.get(request_id)
            if request is not None:
                count_finished(state, request)
                self._end(request)

    def preempted(self, request_id: RequestId, *, output_tokens: int) -> None:
        """The engine took a request's blocks back without a plan, as for a reset of its cache.

        ``output_tokens``: what the engine says that it has produced.

        Raises:
            UnknownRequestError: it was never added, or has ended.
        """
        request = self._state.get(request_id)
        if request_id in self._state.running:
            preempt(self._state, request)
        request.output_tokens = output_tokens

    def telemetry(self) -> dict[str, Any]:
        """Sums and levels as plain types; fixed size."""
        return self._state.telemetry()

    def _end(self, request: Request) -> None:
        end(self._state, request)
        for listener in self._listeners:
            listener.on_end(request)


def _from_arrival(budget: StepBudget) -> bool:
    """Whether an objective on TPOT counts from arrival: Echo's does, others where told to."""
    if isinstance(budget, SloBudget):
        return budget.tpot_from_arrival
    return isinstance(budget, CumulativeBudget)
