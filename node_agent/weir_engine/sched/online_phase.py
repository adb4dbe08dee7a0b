"""First phase of a step: online work. Every decode runs; prefill fills what the SLOs allow.

Offline requests give way for blocks and slots. Source: HyGen Algorithm 1, phase ONLINE.
"""

from typing import NamedTuple

from weir_engine.latency.features import StepShape
from weir_engine.latency.models import LatencyModel
from weir_engine.request import Request
from weir_engine.sched.account import OnlineLoad
from weir_engine.sched.bookkeeping import Bookkeeping
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.making_room import MakingRoom
from weir_engine.sched.online_prompts import OnlinePrompts
from weir_engine.sched.pace import Pace, earliest
from weir_engine.sched.state import SchedulerState
from weir_engine.sched.step_kind import StepKind, kind_of


class _Running(NamedTuple):
    """The online requests that run, by what they are about to do."""

    decoding: list[Request]
    prefilling: list[Request]


class OnlinePhase:
    """Puts the online work of one step into a draft."""

    def __init__(  # noqa: PLR0913 - its seats
        self,
        state: SchedulerState,
        *,
        model: LatencyModel,
        books: Bookkeeping,
        prompts: OnlinePrompts,
        pace: Pace | None,
        making_room: MakingRoom,
        splits_steps: bool = False,
        offline_decodes_count: bool = True,
    ) -> None:
        """``splits_steps``: prompts and decodes get steps of their own where that is shorter.

        For offline prompts that is seen by the decodes of both classes, or without
        ``offline_decodes_count`` by those of online requests where there are any.
        """
        self._state = state
        self._model = model
        self._books = books
        self._prompts = prompts
        self._pace = pace
        self._making_room = making_room
        self._splits_steps = splits_steps
        self._offline_decodes_count = offline_decodes_count
        shape = state.shape
        self._most_context = StepShape(decode_context=shape.max_seqs * shape.max_model_len_tokens)

    def fill(
        self, draft: StepDraft, now_s: float, busy_s: float, *, offline_prompts: bool = False
    ) -> OnlineLoad:
        """Add the online work; answers with the load that it makes (see there for the times).

        ``offline_prompts``: there are some that might join the step. Where they would take too long
        beside its decodes, these wait for the next step, or for ``decode_instead``.
        """
        there = self._by_phase()
        draft.asks_nothing = self._asks_nothing(there)
        if there.prefilling or not draft.asks_nothing:
            self._books.settle()  # the model is asked first, and must not learn amid a plan
        if self.may_split:
            draft.kind = self._kind(there, offline_prompts=offline_prompts)
        if draft.kind is StepKind.PREFILL:
            self._leave_out(draft, there.decoding)
        else:
            self._decodes(draft, there.decoding)
        load = self._load_with_prompts(draft, there, now_s, busy_s)
        if draft.kind is StepKind.PREFILL and not (draft.work or offline_prompts):
            return self.decode_instead(draft, now_s, busy_s)
        return load

    def _asks_nothing(self, there: _Running) -> bool:
        """Whether no account need be asked what it leaves to offline work."""
        state = self._state
        if state.only_online_runs:
            return True
        if there.prefilling or state.waiting_online or state.lane is not None:
            return False
        return self._books.is_quiet_beside(len(there.decoding))

    @property
    def may_split(self) -> bool:
        """False while not even the longest contexts in all slots would be worth steps of their own.

        Most engines' never are: looking at the contexts that are there takes a tenth of a plan.
        """
        if not self._splits_steps:
            return False
        return kind_of(self._model, self._most_context, decodes_wait=False) is StepKind.PREFILL

    def decode_instead(self, draft: StepDraft, now_s: float, busy_s: float) -> OnlineLoad:
        """No prompt could join a step that was to have nothing else: its decodes run after all."""
        there = self._by_phase()
        draft.kind = StepKind.DECODE
        self._leave_out(draft, [])
        self._decodes(draft, [r for r in there.decoding if r.id not in draft.preempted])
        return self._load_with_prompts(draft, there, now_s, busy_s)

    def _by_phase(self) -> _Running:
        decoding: list[Request] = []
        prefilling: list[Request] = []
        for request in self._state.running_online.values():
            output = request.output_tokens
            if output >= request.max_output_tokens:
                continue  # its last token is in flight
            if output and request.prompt_tokens + output - request.computed_tokens == 1:
                decoding.append(request)
            else:
                prefilling.append(request)
        return _Running(decoding, prefilling)

    def _kind(self, there: _Running, *, offline_prompts: bool) -> StepKind:
        """By the decodes that prompts of the step would have beside them."""
        state = self._state
        computed = [request.computed_tokens for request in there.decoding]
        if not (there.prefilling or state.waiting_online):
            if not offline_prompts:
                return StepKind.HYBRID
            if self._offline_decodes_count or not computed:
                others = state.running_offline.values()
                computed += [r.computed_tokens for r in others if r.is_decoding]
        if not computed:
            return StepKind.HYBRID
        decodes = StepShape.of_decodes(computed)
        return kind_of(self._model, decodes, decodes_wait=state.decodes_wait)

    def _leave_out(self, draft: StepDraft, decoding: list[Request]) -> None:
        decodes = StepShape.of_decodes([request.computed_tokens for request in decoding])
        draft.waiting_decodes = decodes
        draft.waiting_s = 0.0 if decodes.is_empty else self._model.predict(decodes)

    def _load_with_prompts(
        self, draft: StepDraft, there: _Running, now_s: float, busy_s: float
    ) -> OnlineLoad:
        """The load, once the step has what it takes of the prompts."""
        prefilling = there.prefilling
        load = self._load(draft, there, now_s, busy_s)
        if prefilling or self._state.waiting_online:
            if draft.kind is not StepKind.DECODE or not draft.work:
                self._prompts.fill(draft, prefilling, load)
            load = self._prompts.timed(draft, prefilling, load, self._base_s(draft, there))
        return load

    def _base_s(self, draft: StepDraft, there: _Running) -> float:
        """Of the online work: until the decodes have their tokens, which may be the step after."""
        shape = draft.shape
        if not shape.is_empty:
            return draft.waiting_s + self._model.predict(shape)
        # A step of its prompts has a fixed part of its own, before any is in it.
        own = draft.waiting_s > 0 and bool(there.prefilling or self._state.waiting_online)
        return draft.waiting_s + (self._model.fixed_s if own else 0.0)

    def _load(self, draft: StepDraft, there: _Running, now_s: float, busy_s: float) -> OnlineLoad:
        decoding, prefilling = there
        if draft.preempted:
            decoding = [request for request in decoding if request.id not in draft.preempted]
        earliest_s, cumulative_s = earliest(decoding, self._pace, now_s, busy_s)
        first: list[float] = []
        resuming = 0
        if prefilling or self._state.waiting_online:  # in most steps all have their first token
            waiting = self._prompts.waiting(draft)
            first = [r.arrival_s for r in [*prefilling, *waiting] if r.output_tokens == 0]
            resuming = len([r for r in waiting if r.output_tokens])
        return OnlineLoad(
            now_s=now_s,
            busy_s=busy_s,
            decoders=draft.decode_requests + draft.waiting_decodes.decode_requests,
            earliest_token_s=earliest_s,
            earliest_cumulative_s=cumulative_s,
            prefills=len(first) + resuming,
            earliest_arrival_s=min(first, default=None),
            base_s=self._base_s(draft, there),
            idle_step_s=self._model.fixed_s,
            surcharge_s=self._books.surcharge.seconds,
        )

    def _decodes(self, draft: StepDraft, decoding: list[Request]) -> None:
        computed = [request.computed_tokens for request in decoding]
        blocks = draft.decode_blocks(computed)
        if blocks <= draft.blocks_left and len(decoding) <= draft.tokens_left:
            draft.take_blocks(blocks, offline=False)
            works = [self._state.decode_work[r.id] for r in decoding]
            draft.add_decodes(works, StepShape.of_decodes(computed))
            return
        for request in decoding:
            self._decode(draft, request)

    def _decode(self, draft: StepDraft, request: Request) -> None:
        if draft.tokens_left < 1 or request.id in draft.preempted:
            return
        blocks = draft.blocks_for(request.computed_tokens, 1)
        if blocks > draft.blocks_left and not self._making_room.make(draft, request, blocks):
            return
        draft.take_blocks(blocks, offline=False)
        decode = StepShape.of_decodes([request.computed_tokens])
        draft.add_decodes([self._state.decode_work[request.id]], decode)
