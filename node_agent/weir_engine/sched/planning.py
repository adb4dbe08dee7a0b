"""One step decided: online first, then the step's limit, then offline work within it.

Nothing changes while a plan is made; what is learnt from plans is learnt when one has begun.
"""

from collections.abc import Sequence

from weir_engine.config import ONLINE_ONLY, Metric, Policy, Slo
from weir_engine.sched.account import OnlineLoad, StepLimit
from weir_engine.sched.bookkeeping import Bookkeeping
from weir_engine.sched.both_ends import BothEnds
from weir_engine.sched.cpu_overflow import CpuOverflow
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.finishing import Finishing
from weir_engine.sched.joining import PromptJoining
from weir_engine.sched.making_room import MakingRoom
from weir_engine.sched.offline_admission import OfflineAdmission
from weir_engine.sched.offline_phase import OfflinePhase
from weir_engine.sched.online_phase import OnlinePhase
from weir_engine.sched.online_prompts import OnlinePrompts
from weir_engine.sched.online_room import OnlineRoom
from weir_engine.sched.overcommit import Overcommit
from weir_engine.sched.pace import Pace
from weir_engine.sched.plan import StepPlan
from weir_engine.sched.seats import Seats
from weir_engine.sched.state import SchedulerState
from weir_engine.sched.steady import SteadyDecodes
from weir_engine.sched.step_kind import StepKind, counts_offline_decodes
from weir_engine.sched.step_room import StepRoom


class Planning:
    """Makes the plan of a step from the scheduler's state, by who sits in the seats.

    ``pace`` is the tightest objective on TPOT (None without any), ``packing`` who sits in the seat
    of that name (None: the two phases).

    Source: HyGen Algorithm 1 (two phases); design §3.
    """

    def __init__(
        self,
        state: SchedulerState,
        seats: Seats,
        *,
        slos: Sequence[Slo],
        books: Bookkeeping,
        pace: Pace | None,
    ) -> None:
        model, ends = seats.model, BothEnds(state.kv, seats.swap)
        self._state = state
        self._books = books
        self._admission = seats.admission
        self.packing = packing = None if seats.packing is None else seats.packing(state)
        self.fills_from_both_ends = ends.there
        self._overflow = None if seats.lane is None else CpuOverflow(state, seats.lane, model)
        self._online = _online_phase(state, seats, ends, slos=slos, books=books, pace=pace)
        room = OnlineRoom(state, both_ends=ends.there) if seats.keeps_room else None
        overcommit = Overcommit(state) if seats.overcommits else None
        self._learning = tuple([each for each in (room, overcommit) if each is not None])
        self._offline = _offline_phase(state, seats, ends, room=room, overcommit=overcommit)
        self._finishing = Finishing(state, model, packs=packing is not None)
        self._steady: SteadyDecodes | None = None
        if self._admission is None and packing is None and seats.lane is None:
            self._steady = SteadyDecodes(state, model=model, books=books, pace=pace)

    def plan(self, policy: Policy, now_s: float, busy_s: float) -> StepPlan:
        """The next step, which the engine comes to in ``busy_s`` seconds."""
        policy = policy if policy.alive(now_s) else ONLINE_ONLY
        if self._steady is not None:
            plan = self._steady.again(
                now_s, busy_s, lambda load: self._step_limit(load, policy, only_online=True)
            )
            if plan is not None:
                return plan
        draft = self._draft(now_s)
        if self.packing is None:
            return self._in_two_phases(draft, policy, now_s, busy_s)
        packed = self.packing.fill(draft, policy, now_s)
        return self._finishing.plan(
            draft, OnlineLoad(now_s=now_s), packed.limit, packed.online_shape
        )

    def beginning(self, plan: StepPlan) -> None:
        """A plan was sent, and is about to take effect."""
        for each in self._learning:
            each.on_begin(plan)

    def began(self, plan: StepPlan) -> None:
        """A plan was sent, and has taken effect."""
        if self._steady is not None:
            self._steady.began(plan)

    def _draft(self, now_s: float) -> StepDraft:
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
        return draft

    def _in_two_phases(
        self, draft: StepDraft, policy: Policy, now_s: float, busy_s: float
    ) -> StepPlan:
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


def _online_phase(
    state: SchedulerState,
    seats: Seats,
    ends: BothEnds,
    *,
    slos: Sequence[Slo],
    books: Bookkeeping,
    pace: Pace | None,
) -> OnlinePhase:
    model, making_room = seats.model, MakingRoom(state, ends)
    joining = PromptJoining(
        state,
        model,
        # It shortens the first token's wait at the next tokens' expense.
        staggers=seats.stagger_prompts and any(slo.metric is Metric.TTFT for slo in slos),
        beside_decodes=seats.joins_beside_decodes,
    )
    prompts = OnlinePrompts(
        state,
        model=model,
        books=books,
        order=seats.order,
        ends=ends,
        making_room=making_room,
        joining=joining,
        fewest_late=seats.fewest_late,
    )
    return OnlinePhase(
        state,
        model=model,
        books=books,
        prompts=prompts,
        pace=pace,
        making_room=making_room,
        # What is restored, or decodes on CPUs, has a place in steps of both alone.
        splits_steps=seats.splits_steps and not ends.there and seats.lane is None,
        offline_decodes_count=counts_offline_decodes(slos),
    )


def _offline_phase(
    state: SchedulerState,
    seats: Seats,
    ends: BothEnds,
    *,
    room: OnlineRoom | None,
    overcommit: Overcommit | None,
) -> OfflinePhase:
    step_room = StepRoom(seats.model)
    admission = OfflineAdmission(state, step_room, room, to_peak=ends.there, overcommit=overcommit)
    return OfflinePhase(
        state,
        step_room=step_room,
        ends=ends,
        admission=admission,
        prefill_first=seats.prefill_first,
        gathering=seats.gathering,
    )
