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
from weir_engine.sched.account import OnlineLoad, StepLimit
from weir_engine.sched.bookkeeping import Bookkeeping
from weir_engine.sched.both_ends import BothEnds
from weir_engine.sched.budget import SloBudget, StepBudget
from weir_engine.sched.cpu_overflow import CpuOverflow
from weir_engine.sched.cumulative_budget import CumulativeBudget
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.finishing import Finishing
from weir_engine.sched.joining import PromptJoining
from weir_engine.sched.listener import StepListener
from weir_engine.sched.making_room import MakingRoom
from weir_engine.sched.offline_admission import OfflineAdmission
from weir_engine.sched.offline_phase import OfflinePhase
from weir_engine.sched.online_phase import OnlinePhase
from weir_engine.sched.online_prompts import OnlinePrompts
from weir_engine.sched.online_room import OnlineRoom
from weir_engine.sched.overcommit import Overcommit
from weir_engine.sched.pace import Pace
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sched.seats import Seats
from weir_engine.sched.settlement import Settlement
from weir_engine.sched.state import Counters, SchedulerState
from weir_engine.sched.steady import SteadyDecodes
from weir_engine.sched.step_kind import StepKind, counts_offline_decodes
from weir_engine.sched.step_room import StepRoom
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
        self._state = SchedulerState(
            shape=shape, kv=kv, pool=seats.pool, lane=seats.lane, policy=policy
        )
        self._admission = seats.admission
        self._overflow = None if seats.lane is None else CpuOverflow(self._state, seats.lane, model)
        self._model = model
        self._budget = budget
        self._books = books = Bookkeeping(budget, model)
        self._pace = pace = Pace.of(slos, from_arrival=_from_arrival(budget))
        self._packing = None if seats.packing is None else seats.packing(self._state)
        packing: object = self._packing
        own = (packing,) if isinstance(packing, StepListener) else ()
        self._listeners = (*seats.listeners, *own)
        ends = BothEnds(kv, seats.swap)
        self._hold_steps = 0 if ends.there else _HOLD_STEPS
        self._online = self._online_phase(seats, ends)
        room = OnlineRoom(self._state, both_ends=ends.there) if seats.keeps_room else None
        overcommit = Overcommit(self._state) if seats.overcommits else None
        self._watching = tuple([each for each in (room, overcommit) if each is not None])
        step_room = StepRoom(model)
        self._offline = OfflinePhase(
            self._state,
            step_room=step_room,
            ends=ends,
            admission=OfflineAdmission(
                self._state, step_room, room, to_peak=ends.there, overcommit=overcommit
            ),
            prefill_first=seats.prefill_first,
            gathering=seats.gathering,
        )
        self._settlement = Settlement(self._state, model=model, books=books, pace=pace)
        self._finishing = Finishing(self._state, model, packs=self._packing is not None)
        self._steady: SteadyDecodes | None = None
        if self._admission is None and self._packing is None and seats.lane is None:
            self._steady = SteadyDecodes(self._state, model=model, books=books, pace=pace)

    def _online_phase(self, seats: Seats, ends: BothEnds) -> OnlinePhase:
        making_room = MakingRoom(self._state, ends)
        prompts = OnlinePrompts(
            self._state,
            model=self._model,
            books=self._books,
            order=seats.order,
            ends=ends,
            making_room=making_room,
            joining=PromptJoining(
                self._state,
                self._model,
                # It shortens the first token's wait at the next tokens' expense.
                staggers=seats.stagger_prompts and any(s.metric is Metric.TTFT for s in self._slos),
                beside_decodes=seats.joins_beside_decodes,
            ),
            fewest_late=seats.fewest_late,
        )
        return OnlinePhase(
            self._state,
            model=self._model,
            books=self._books,
            prompts=prompts,
            pace=self._pace,
            making_room=making_room,
            # What is restored, or decodes on CPUs, has a place in steps of both alone.
            splits_steps=seats.splits_steps and not ends.there and seats.lane is None,
            offline_decodes_count=counts_offline_decodes(self._slos),
        )

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
        busy_s = self._settlement.busy_s(now_s)
        policy = self.policy if self.policy.alive(now_s) else ONLINE_ONLY
        if self._steady is not None:
            plan = self._steady.again(
                now_s, busy_s, lambda load: self._step_limit(load, policy, only_online=True)
            )
            if plan is not None:
                return plan
        return self._plan_anew(policy, now_s, busy_s)

    def _plan_anew(self, policy: Policy, now_s: float, busy_s: float) -> StepPlan:
        state = self._state
        draft = StepDraft(
            state.kv,
            block_size_tokens=state.shape.block_size_tokens,
            tokens=state.shape.max_batched_tokens,
            seqs=state.shape.max_seqs - len(state.running),
            offline_seqs=len(state.running_offline),
        )
        if self._admission is not None:
            waiting = state.waiting_online.values()
            draft.refused = self._admission.refused(state.running_online.values(), waiting, now_s)
        if self._packing is not None:
            packed = self._packing.fill(draft, policy, now_s)
            return self._finishing.plan(
                draft, OnlineLoad(now_s=now_s), packed.limit, packed.online_shape
            )
        may_run = bool(policy.offline_seq_slots and policy.offline_kv_blocks)
        may_split = may_run and self._online.may_split
        prompts = may_split and self._offline.has_prompts(draft, policy)
        load = self._online.fill(draft, now_s, busy_s, offline_prompts=prompts)
        online_shape = draft.shape
        only_online = draft.asks_nothing
        load, limit = self._limited(draft, load, policy, only_online=only_online)
        if only_online or not may_run:
            return self._finishing.plan(draft, load, limit, online_shape)
        if self._overflow is None:
            self._offline.fill(draft, policy, load, limit)
            if draft.kind is StepKind.PREFILL and not draft.work:
                load = self._online.decode_instead(draft, now_s, busy_s)
                online_shape = draft.shape
                load, limit = self._limited(draft, load, policy, only_online=False)
                self._offline.fill(draft, policy, load, limit)
            return self._finishing.plan(draft, load, limit, online_shape)
        reserve_s = self._overflow.reserve_s(draft, limit.seconds)
        left = limit._replace(seconds=limit.seconds - reserve_s)
        self._offline.fill(draft, policy, load, left)
        taken = self._overflow.fill(
            draft, policy, base_s=load.base_s, reserve_s=reserve_s, limit_s=limit.seconds
        )
        return self._finishing.plan(draft, load, limit, online_shape, taken)

    def begin(self, plan: StepPlan) -> None:
        """The plan was sent to the engine: preemptions, admissions and progress take effect."""
        state = self._state
        state.step = plan.step
        self._settlement.began(plan)
        for watching in self._watching:
            watching.on_begin(plan)
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
        if self._steady is not None:
            self._steady.began(plan)
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

    def _limited(
        self, draft: StepDraft, load: OnlineLoad, policy: Policy, *, only_online: bool
    ) -> tuple[OnlineLoad, StepLimit]:
        """Load and limit of the step alone; decodes that wait have the rest of that time."""
        stays = draft.kind is StepKind.HYBRID  # the work that waits may keep others from a step
        limit = self._step_limit(load, policy, only_online=only_online, stays=stays)
        waiting_s = draft.waiting_s
        if not waiting_s:
            return load, limit
        load = load._replace(base_s=load.base_s - waiting_s)
        return load, limit._replace(seconds=limit.seconds - waiting_s)

    def _step_limit(
        self, load: OnlineLoad, policy: Policy, *, only_online: bool, stays: bool = True
    ) -> StepLimit:
        books = self._books
        limit = books.without_offline(load) if only_online else books.step_limit(load, stays=stays)
        if policy.step_budget_s is not None and policy.step_budget_s < limit.seconds:
            return limit._replace(seconds=policy.step_budget_s, reason="policy", idle_s=None)
        return limit

    def _end(self, request: Request) -> None:
        end(self._state, request)
        for listener in self._listeners:
            listener.on_end(request)


def _from_arrival(budget: StepBudget) -> bool:
    """Whether an objective on TPOT counts from arrival: Echo's does, others where told to."""
    if isinstance(budget, SloBudget):
        return budget.tpot_from_arrival
    return isinstance(budget, CumulativeBudget)
