"""Second phase of a step: offline work fills what online work leaves.

Running requests first, then preempted ones, then the pool. Nothing here lengthens the step past
its limit, or takes a block or a slot beyond the policy. Source: HyGen Algorithm 1, phase OFFLINE;
the threshold is Echo's (§5.3).
"""

from typing import NamedTuple, Self

from weir_engine.config import Policy
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.request import Request
from weir_engine.sched.account import OnlineLoad, StepLimit
from weir_engine.sched.both_ends import BothEnds
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.gathering import PromptGathering
from weir_engine.sched.offline_admission import OfflineAdmission, anybody_fits, free_slots
from weir_engine.sched.plan import Work
from weir_engine.sched.restoring import Lacking, Restoring, may_grow
from weir_engine.sched.state import SchedulerState
from weir_engine.sched.step_kind import StepKind
from weir_engine.sched.step_room import StepRoom

# Prompts go before decodes where a decode takes as long as this many tokens of a prompt: on GPUs
# one over thousands of tokens of context does. Below, what counts is to finish what has begun. A
# CPU lane finishes it without the GPU's time: there, where a decode takes longer than one token.
_DEAR_DECODE = 10.0


class _Decodes(NamedTuple):
    """Requests that decode, what is computed of each, and what a token more of all computes."""

    requests: list[Request]
    computed: list[int]
    shape: StepShape

    @classmethod
    def of(cls, requests: list[Request]) -> Self:
        """Of these requests."""
        computed = [request.computed_tokens for request in requests]
        return cls(requests, computed, StepShape.of_decodes(computed))


class _Running(NamedTuple):
    """The offline requests that run, and by what they are about to do: those that lack KV last."""

    running: list[Request]
    decoding: _Decodes
    prefilling: list[Request]
    lacking: Lacking


class OfflinePhase:
    """Puts the offline work of one step into a draft that has the online work."""

    def __init__(
        self,
        state: SchedulerState,
        *,
        step_room: StepRoom,
        ends: BothEnds,
        admission: OfflineAdmission,
        prefill_first: bool | None = False,
        gathering: PromptGathering | None = None,
    ) -> None:
        """``prefill_first``: prompts go before decodes (OmniServe §3.3.2).

        None: where that serves many more tokens a second of the step. ``gathering`` None: prompts
        join at once.
        """
        self._state = state
        self._ends = ends
        self._room = step_room
        self._restoring = Restoring(state, ends, self._room)
        self._prefill_first = prefill_first
        self._gathering = gathering
        self._admission = admission

    def fill(self, draft: StepDraft, policy: Policy, load: OnlineLoad, limit: StepLimit) -> None:
        """Add offline work as long as the predicted step stays within ``limit``."""
        limit_s = limit.seconds
        running = list(self._state.running_offline.values())
        if draft.preempted:
            running = [request for request in running if request.id not in draft.preempted]
        if not running and not self._state.offline_waiting:
            return
        if limit_s <= load.base_s:
            return
        whole, lacking = self._restoring.parted(draft, running)
        requests, prefilling = self._by_phase(whole)
        there = _Running(running, _Decodes.of(requests), prefilling, lacking)
        if draft.kind is StepKind.PREFILL:
            self._prompts_alone(draft, policy, there, load.now_s, limit)
            return
        must_move = load.base_s == 0.0  # a step that may run always does something
        if draft.kind is StepKind.HYBRID:
            blocked = self._both(draft, policy, there, load.now_s, limit, must_move=must_move)
        else:
            blocked = self._decodes(draft, policy, there.decoding, limit_s, must_move=must_move)
        if blocked:
            self._give_way(draft, policy, running, load.now_s)

    def _both(
        self,
        draft: StepDraft,
        policy: Policy,
        there: _Running,
        now_s: float,
        limit: StepLimit,
        *,
        must_move: bool,
    ) -> bool:
        """Decodes and prompts, and those that join; True when one that runs lacked a block."""
        running, decoding, prefilling, lacking = there
        limit_s, decodes = limit.seconds, len(decoding.requests)
        online_decodes = draft.decode_requests
        prefill_first = self._prompts_first(draft, decoding, limit_s)
        self._room.keep_within_graphs(draft, decoding.shape, limit)
        blocked = False
        if not prefill_first:
            blocked = self._decodes(draft, policy, decoding, limit_s, must_move=must_move)
            self._size_step(draft, policy, decodes, limit_s)
        blocked |= self._prefills(draft, policy, prefilling, limit_s, must_move=must_move)
        if prefill_first:
            if not blocked:
                self._admission.fill(draft, policy, running, now_s, limit_s, must_move=must_move)
            blocked |= self._decodes(draft, policy, decoding, limit_s, must_move=must_move)
        added = draft.decode_requests - online_decodes
        blocked |= self._restoring.fill(draft, policy, lacking, limit_s, must_move=must_move)
        # Those that are held back already are company enough.
        alone = added == decodes and not prefill_first
        if not blocked and alone and not self._gathers(draft, policy, decodes):
            self._admission.fill(draft, policy, running, now_s, limit_s, must_move=must_move)
        return blocked

    def _prompts_alone(
        self, draft: StepDraft, policy: Policy, there: _Running, now_s: float, limit: StepLimit
    ) -> None:
        """Prompts, as long as the decodes of both classes still end within the limit after them."""
        decoding, limit_s = there.decoding, limit.seconds
        if decoding.requests:
            both = draft.waiting_decodes.plus(decoding.shape)
            apart_s = self._room.seconds(both) - draft.waiting_s
            if not self._prompts_first(draft, decoding, limit_s, apart_s):
                limit_s -= apart_s
        self._room.keep_within_graphs(draft, EMPTY_SHAPE, limit._replace(seconds=limit_s))
        self._size_step(draft, policy, len(decoding.requests), limit_s)
        if self._prefills(draft, policy, there.prefilling, limit_s, must_move=False):
            return
        if not self._gathers(draft, policy, len(decoding.requests)):
            self._admission.fill(draft, policy, there.running, now_s, limit_s, must_move=False)

    def has_prompts(self, draft: StepDraft, policy: Policy) -> bool:
        """True while some are begun, or wait and might be admitted."""
        state = self._state
        decodes = 0
        for request in state.running_offline.values():
            if request.remaining_tokens > 1 or not request.output_tokens:
                return True
            decodes += 1
        if not state.offline_waiting or free_slots(draft, policy) < 1:
            return False
        return not self._gathers(draft, policy, decodes)

    def _prompts_first(
        self, draft: StepDraft, decoding: _Decodes, limit_s: float, apart_s: float | None = None
    ) -> bool:
        """As set, else True when time ends the step and decodes are dear."""
        if self._prefill_first is not None:
            return self._prefill_first
        return self._room.prefers_prompts(
            draft.shape,
            decoding.shape,
            limit_s,
            draft.tokens_left,
            dear=_DEAR_DECODE if self._state.lane is None else 1.0,
            apart_s=apart_s,
        )

    def _gathers(self, draft: StepDraft, policy: Policy, decodes: int) -> bool:
        """True while prompts wait for more slots to come free."""
        if self._gathering is None:
            return False
        return self._gathering.waits(draft, free_slots(draft, policy), decodes)

    def _size_step(self, draft: StepDraft, policy: Policy, decodes: int, limit_s: float) -> None:
        """Leaves prompts no more tokens than are cheap, where slots are short."""
        free = free_slots(draft, policy)
        if self._gathering is None or not self._gathering.short(free, decodes):
            return
        tokens = draft.shape.tokens
        fitting = self._room.prompt_tokens(draft.shape, 0, limit_s, draft.tokens_left)
        most = self._gathering.most_tokens(draft.decode_requests, tokens + fitting)
        if most < tokens + fitting:
            draft.tokens_left = max(most - tokens, 0)

    def _by_phase(self, running: list[Request]) -> tuple[list[Request], list[Request]]:
        decoding: list[Request] = []
        prefilling: list[Request] = []
        landing = self._state.lane.landing if self._state.lane else ()
        for request in running:
            output = request.output_tokens
            if output >= request.max_output_tokens or (landing and request.id in landing):
                continue  # its last token is in flight, or its KV
            if output and request.prompt_tokens + output - request.computed_tokens == 1:
                decoding.append(request)
            else:
                prefilling.append(request)
        return decoding, prefilling

    def _decodes(
        self,
        draft: StepDraft,
        policy: Policy,
        decoding: _Decodes,
        limit_s: float,
        *,
        must_move: bool,
    ) -> bool:
        """Add the decodes that fit, oldest first; True when one lacked a block."""
        step, held_until = self._state.step + 1, self._state.held_until
        held = {name for name, until in held_until.items() if until > step and not must_move}
        if held:
            decoding = _Decodes.of([r for r in decoding.requests if r.id not in held])
        if len(decoding.requests) > draft.tokens_left:
            decoding = _Decodes.of(decoding.requests[: max(draft.tokens_left, 0)])
        if not self._room.fit(draft.shape, decoding.shape, limit_s):
            count = self._room.decodes(draft.shape, decoding.computed, limit_s)
            if must_move and not draft.work:
                count = max(count, 1)
            decoding = _Decodes.of(decoding.requests[:count])
        count = len(decoding.requests)
        blocks = draft.decode_blocks(decoding.computed)
        if not may_grow(draft, policy, blocks):
            # As many as there are blocks for, the oldest first; those within a block go on.
            decoding = _Decodes.of(self._growing(draft, policy, decoding.requests))
            blocks = draft.decode_blocks(decoding.computed)
        draft.take_blocks(blocks, offline=True)
        works = [self._state.decode_work[request.id] for request in decoding.requests]
        draft.add_decodes(works, decoding.shape)
        return len(works) < count

    def _growing(self, draft: StepDraft, policy: Policy, fitting: list[Request]) -> list[Request]:
        free = min(draft.blocks_left, policy.offline_kv_blocks - draft.offline_blocks)
        kept = []
        for request in fitting:
            blocks = draft.blocks_for(request.computed_tokens, 1)
            if blocks <= max(free, 0):
                free -= blocks
                kept.append(request)
        return kept

    def _prefills(
        self,
        draft: StepDraft,
        policy: Policy,
        prefilling: list[Request],
        limit_s: float,
        *,
        must_move: bool,
    ) -> bool:
        blocked = False
        for request in prefilling:
            computed = request.computed_tokens
            remaining = request.known_tokens - computed
            tokens = self._room.chunk_tokens(
                draft, computed, remaining, limit_s, must_move=must_move
            )
            if tokens == 0:
                break
            blocks = draft.blocks_for(computed, tokens)
            if not may_grow(draft, policy, blocks):
                blocked = True
                continue
            draft.take_blocks(blocks, offline=True)
            work = Work(request_id=request.id, tokens=tokens, reason="offline-prefill")
            draft.add_prefill(work, computed)
        return blocked

    def _give_way(
        self, draft: StepDraft, policy: Policy, running: list[Request], now_s: float
    ) -> None:
        """Offline requests block each other: the last arrival frees its blocks for the others.

        Not where online works on blocks with two ends: what it has taken comes free again. Alone a
        request waits for the threshold to rise, unless another one waits that fits under it.
        """
        if any(work.reason.startswith("offline") for work in draft.work):
            return
        if self._ends.there and draft.work:
            return
        if len(running) == 1 and not self._keeps_others_out(draft, policy, running[0], now_s):
            return
        last = max(running, key=lambda request: (request.arrival_s, request.id))
        draft.drop(last, self._state.kv.releasable_blocks([last.id]), reason="offline-needs-room")

    def _keeps_others_out(
        self, draft: StepDraft, policy: Policy, alone: Request, now_s: float
    ) -> bool:
        """True while it cannot compute the rest of what it has and another one could run."""
        rest = draft.blocks_for(alone.computed_tokens, alone.remaining_tokens)
        outgrown = draft.offline_blocks + rest > policy.offline_kv_blocks
        return outgrown and anybody_fits(self._state, draft, policy, now_s)
