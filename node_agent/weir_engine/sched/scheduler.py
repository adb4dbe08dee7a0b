"""The scheduler: events in, one ``StepPlan`` a step out.

``plan`` decides from a snapshot and changes nothing; ``begin`` records that a plan was sent to the
engine, ``commit`` what became of it. Backends: vLLM, weir_torch, the simulator.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from weir_engine.config import ONLINE_ONLY, EngineShape, Metric, Policy, Slo
from weir_engine.errors import DuplicateRequestError
from weir_engine.ids import RequestId
from weir_engine.kv.view import KvView
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.models import LatencyModel
from weir_engine.request import Request, RequestState
from weir_engine.sched.account import OnlineLoad, StepLimit, StepTimes
from weir_engine.sched.admission import Admission
from weir_engine.sched.budget import SloBudget, StepBudget
from weir_engine.sched.cpu_lane import CpuLaneView
from weir_engine.sched.cpu_overflow import NO_PIGGYBACK, CpuOverflow
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.listener import StepListener
from weir_engine.sched.offline_phase import OfflinePhase
from weir_engine.sched.online_phase import OnlinePhase
from weir_engine.sched.order import OnlineOrder
from weir_engine.sched.packing import Packing
from weir_engine.sched.piggyback import Piggyback
from weir_engine.sched.plan import StepOutcome, StepPlan, Work
from weir_engine.sched.selection import OfflineOrder
from weir_engine.sched.state import Counters, SchedulerState

# A decode that is held back stays back for this many steps: requests that leave and rejoin the
# running batch cost the engine time.
_HOLD_STEPS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Seats:
    """Who decides what.

    ``model`` predicts how long a step takes, ``budget`` says how long it may take, ``order`` ranks
    online prefill, ``pool`` ranks offline requests that wait. ``listeners`` are told of events:
    seats that decide from what happened before. ``admission`` (None: every request is taken) turns
    online requests away, ``lane`` (None: there is none) is attention on host CPUs,
    ``prefill_first`` lets offline prompts go before offline decodes. ``stagger_prompts``: where
    TTFT has an objective, a prompt that ends in a long step keeps other online prompts out of it.
    ``packing`` (None: the two phases) puts both classes into a step at once.
    """

    model: LatencyModel
    budget: StepBudget
    order: OnlineOrder
    pool: OfflineOrder
    listeners: tuple[StepListener, ...] = ()
    admission: Admission | None = None
    lane: CpuLaneView | None = None
    prefill_first: bool = False
    stagger_prompts: bool = True
    packing: Callable[[SchedulerState], Packing] | None = None


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
        self._state = SchedulerState(
            shape=shape, kv=kv, pool=seats.pool, lane=seats.lane, policy=policy
        )
        self._admission = seats.admission
        self._overflow = None if seats.lane is None else CpuOverflow(self._state, seats.lane, model)
        self._model = model
        self._budget = budget
        tpot_s = min((s.threshold_s for s in slos if s.metric is Metric.TPOT), default=None)
        self._tpot_s = tpot_s
        self._packing = None if seats.packing is None else seats.packing(self._state)
        packing: object = self._packing
        own = (packing,) if isinstance(packing, StepListener) else ()
        self._listeners = (*seats.listeners, *own)
        self._online = OnlinePhase(
            self._state,
            model=model,
            budget=budget,
            order=seats.order,
            tpot_s=tpot_s,
            # It shortens the first token's wait at the next tokens' expense.
            stagger_prompts=seats.stagger_prompts and any(s.metric is Metric.TTFT for s in slos),
        )
        self._offline = OfflinePhase(self._state, model=model, prefill_first=seats.prefill_first)
        self._last_start_s = 0.0
        self._last_end_s = 0.0
        self._last_offline_s = 0.0

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
        """The latency model it learns."""
        return self._model

    @property
    def policy(self) -> Policy:
        """The policy last set."""
        return self._state.policy

    def set_policy(self, policy: Policy) -> None:
        """Replace the policy; it binds the next plan."""
        self._state.policy = policy
        if isinstance(self._budget, SloBudget):
            self._budget.set_client_delay(dict(policy.client_delay_s))

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
            # It may have come while a step with offline work ran, and waited for its end.
            if self._last_start_s <= request.arrival_s < self._last_end_s:
                waited_s = self._last_end_s - request.arrival_s
                request.offline_delay_s = min(waited_s, self._last_offline_s)
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
        state = self._state
        policy = state.policy if state.policy.alive(now_s) else ONLINE_ONLY
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
            return self._finish(draft, OnlineLoad(now_s=now_s), packed.limit, packed.online_shape)
        load = self._online.fill(draft, now_s)
        online_shape = draft.shape
        limit = self._step_limit(load, policy)
        if not (policy.offline_seq_slots and policy.offline_kv_blocks):
            return self._finish(draft, load, limit, online_shape)
        if self._overflow is None:
            self._offline.fill(draft, policy, load, limit.seconds)
            return self._finish(draft, load, limit, online_shape)
        reserve_s = self._overflow.reserve_s(draft, limit.seconds)
        self._offline.fill(draft, policy, load, limit.seconds - reserve_s)
        taken = self._overflow.fill(
            draft, policy, base_s=load.base_s, reserve_s=reserve_s, limit_s=limit.seconds
        )
        return self._finish(draft, load, limit, online_shape, taken)

    def begin(self, plan: StepPlan) -> None:
        """The plan was sent to the engine: preemptions, admissions and progress take effect."""
        state = self._state
        state.step = plan.step
        for request_id in plan.refused:
            self._end(state.get(request_id))
        for preemption in plan.preempt:
            request = state.get(preemption.request_id)
            if preemption.to_cpu:
                state.leave_for_cpu(request)
            else:
                self._preempt(request)
        for request_id in plan.recall:
            state.return_from_cpu(state.get(request_id))
        for work in plan.work:
            self._advance(state.get(work.request_id), work)
        if plan.work:
            for request_id in plan.held:
                if state.held_until.get(request_id, 0) < plan.step:
                    state.held_until[request_id] = plan.step + _HOLD_STEPS
        for listener in self._listeners:
            listener.on_begin(plan, state.requests)

    def commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """A step ended: tokens arrive, requests finish, the models and accounts learn."""
        state = self._state
        same = plan.shape is plan.online_shape or plan.shape == plan.online_shape
        offline = not same or bool(plan.piggyback)
        duration_s = outcome.ended_s - outcome.started_s
        base_s = self._base_s(plan, duration_s) if offline else duration_s
        offline_s = duration_s - base_s if offline else 0.0
        self._last_start_s, self._last_end_s = outcome.started_s, outcome.ended_s
        self._last_offline_s = offline_s
        state.counters.steps += 1
        state.counters.offline_steps += offline
        if outcome.timed:
            self._model.update(plan.shape, duration_s - plan.piggyback_s)
        if offline:
            self._charge_waiting(offline_s)
        times = StepTimes(
            ended_s=outcome.ended_s, duration_s=duration_s, base_s=base_s, offline=offline
        )
        for account in self._budget.accounts:
            account.on_step(times)
        for listener in self._listeners:
            listener.on_commit(plan, outcome)
        self._tokens(outcome)
        for request_id in outcome.finished:
            request = state.requests.get(request_id)
            if request is not None:
                self._count_finished(request)
                self._end(request)

    def resync(
        self, request_id: RequestId, *, computed_tokens: int, output_tokens: int, running: bool
    ) -> None:
        """Take the engine's word for a request, after the engine did not do as planned."""
        state = self._state
        request = state.get(request_id)
        was_running = request_id in state.running
        if running and not was_running:
            self._admit(request, computed_tokens)
        elif was_running and not running:
            self._preempt(request)
        request.computed_tokens = computed_tokens
        request.output_tokens = output_tokens
        state.inflight.stop(request_id)
        if running:
            state.inflight.start(request, computed_tokens)

    def telemetry(self) -> dict[str, Any]:
        """Sums and levels as plain types; fixed size."""
        state, counters = self._state, self._state.counters
        return {
            "steps": counters.steps,
            "offline_steps": counters.offline_steps,
            "preemptions": counters.preemptions,
            "online_tokens": counters.online_tokens,
            "offline_served_tokens": counters.offline_served_tokens,
            "offline_computed_tokens": counters.offline_computed_tokens,
            "offline_hit_tokens": counters.offline_hit_tokens,
            "offline_prompt_tokens": counters.offline_prompt_tokens,
            "online_hit_tokens": counters.online_hit_tokens,
            "online_prompt_tokens": counters.online_prompt_tokens,
            "finished_online": counters.finished_online,
            "finished_offline": counters.finished_offline,
            "online_running": len(state.running_online),
            "offline_running": len(state.running_offline),
            "online_waiting": len(state.waiting_online),
            "offline_waiting": state.offline_waiting,
            "offline_kv_blocks": state.kv.offline_only_blocks,
            "free_kv_blocks": state.kv.free_blocks,
            "total_blocks": state.kv.total_blocks,
            "block_size_tokens": state.shape.block_size_tokens,
        }

    def _step_limit(self, load: OnlineLoad, policy: Policy) -> StepLimit:
        limit = self._budget.step_limit(load)
        if policy.step_budget_s is not None and policy.step_budget_s < limit.seconds:
            return StepLimit(seconds=policy.step_budget_s, reason="policy")
        return limit

    def _finish(
        self,
        draft: StepDraft,
        load: OnlineLoad,
        limit: StepLimit,
        online_shape: StepShape,
        taken: Piggyback = NO_PIGGYBACK,
    ) -> StepPlan:
        state = self._state
        shape = draft.shape
        idle_s = limit.idle_s
        if state.lane is not None:
            next_s = state.lane.next_s
            if next_s is not None:
                idle_s = min(inf if idle_s is None else idle_s, max(next_s - load.now_s, 0.0))
        predicted_s = 0.0 if shape.is_empty else self._model.predict(shape)
        if taken.counts:
            predicted_s = max(predicted_s, self._model.fixed_s) + taken.seconds
        offline = state.offline_waiting or state.running_offline or state.on_cpu
        waits = not (draft.work or taken.counts) and offline
        return StepPlan(
            step=state.step + 1,
            now_s=load.now_s,
            work=tuple(draft.work),
            preempt=tuple(draft.preempt),
            held=self._held(draft),
            shape=shape,
            online_shape=online_shape,
            predicted_s=predicted_s,
            limit_s=limit.seconds,
            limit_reason=limit.reason,
            idle_s=idle_s if waits else None,
            refused=tuple(sorted(draft.refused)),
            recall=tuple(draft.recall),
            restore=tuple(draft.restore),
            piggyback=taken.counts,
            piggyback_s=taken.seconds,
        )

    def _held(self, draft: StepDraft) -> tuple[RequestId, ...]:
        """Running requests that neither work in the step nor give way."""
        state = self._state
        if len(draft.work) - draft.admitted == len(state.running):  # the rule: all of them work
            return ()
        planned = {work.request_id for work in draft.work} | draft.preempted
        if state.lane is not None:
            planned.update(state.lane.landing)
        return tuple([name for name in state.running if name not in planned])

    def _base_s(self, plan: StepPlan, duration_s: float) -> float:
        if plan.online_shape == EMPTY_SHAPE or plan.predicted_s <= 0:
            return 0.0
        return min(1.0, self._model.predict(plan.online_shape) / plan.predicted_s) * duration_s

    def _charge_waiting(self, offline_s: float) -> None:
        for request in self._state.running_online.values():
            if request.first_token_s is None:
                request.offline_delay_s += offline_s
        for request in self._state.waiting_online.values():
            request.offline_delay_s += offline_s

    def _advance(self, request: Request, work: Work) -> None:
        state, counters = self._state, self._state.counters
        if work.admitted:
            first = request.preemptions == 0
            if first:
                request.hit_tokens = work.hit_tokens
            self._admit(request, work.hit_tokens)
            if first and request.is_online:
                counters.online_hit_tokens += work.hit_tokens
                counters.online_prompt_tokens += request.prompt_tokens
            elif first:
                counters.offline_hit_tokens += work.hit_tokens
                counters.offline_prompt_tokens += request.prompt_tokens
        computed = request.computed_tokens = request.computed_tokens + work.tokens
        if request.id in state.inflight.leading:
            state.inflight.advance(request)
        if not request.is_online:
            counters.offline_computed_tokens += work.tokens
            # What is computed again after a preemption was served before.
            served = computed - request.served_tokens
            if served > 0:
                counters.offline_served_tokens += served
                request.served_tokens = computed
        if computed == request.prompt_tokens + request.output_tokens:
            request.output_tokens += 1  # in flight until committed

    def _admit(self, request: Request, computed_tokens: int) -> None:
        state = self._state
        if request.is_online:
            state.waiting_online.pop(request.id, None)
        else:
            if state.resuming.pop(request.id, None) is None:
                state.pool.taken(request.id)
        request.move(RequestState.RUNNING)
        state.start(request, computed_tokens)

    def _preempt(self, request: Request) -> None:
        state = self._state
        request.move(RequestState.PREEMPTED)
        request.preemptions += 1
        request.computed_tokens = 0
        state.counters.preemptions += 1
        state.stop(request)
        if request.is_online:
            state.waiting_online[request.id] = request
        else:
            state.resuming[request.id] = request

    def _tokens(self, outcome: StepOutcome) -> None:
        requests, on_cpu, ended_s = self._state.requests, self._state.on_cpu, outcome.ended_s
        for request_id, tokens in outcome.tokens.items():
            request = requests.get(request_id)
            if request is None or not tokens:
                continue
            if request_id in on_cpu:
                self._count_on_cpu(request, tokens)
            if request.is_online:
                self._online_token(request, tokens, ended_s)
            if request.first_token_s is None:
                request.first_token_s = ended_s
            request.last_token_s = ended_s

    def _online_token(self, request: Request, tokens: int, now_s: float) -> None:
        accounts = self._budget.accounts
        self._state.counters.online_tokens += tokens
        if request.first_token_s is None:
            for account in accounts:
                account.on_first_token(now_s - request.arrival_s, request.offline_delay_s)
        elif request.last_token_s is not None:
            for account in accounts:
                account.on_token(now_s - request.last_token_s, self._last_offline_s)
        if self._tpot_s is not None:
            due_s = request.arrival_s + request.output_tokens * self._tpot_s
            for account in accounts:
                account.on_lateness(now_s - due_s)

    def _count_on_cpu(self, request: Request, tokens: int) -> None:
        """Tokens of the CPU lane: known and computed grow by as many."""
        request.output_tokens += tokens
        request.computed_tokens += tokens
        request.served_tokens += tokens
        self._state.counters.offline_computed_tokens += tokens
        self._state.counters.offline_served_tokens += tokens

    def _count_finished(self, request: Request) -> None:
        if request.is_online:
            self._state.counters.finished_online += 1
        else:
            self._state.counters.finished_offline += 1

    def _end(self, request: Request) -> None:
        state = self._state
        if state.on_cpu.pop(request.id, None) is not None:
            pass  # it holds nothing here
        elif request.state is RequestState.RUNNING:
            state.stop(request)
        elif request.is_online:
            state.waiting_online.pop(request.id, None)
        elif state.resuming.pop(request.id, None) is None:
            state.pool.remove(request.id)
        request.move(RequestState.FINISHED)
        del state.requests[request.id]
        for listener in self._listeners:
            listener.on_end(request)
