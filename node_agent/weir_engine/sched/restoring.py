"""Offline requests whose KV slots online has overwritten: out of a step, and back in.

Only on engines whose KV blocks are filled from both ends. Source: BROS §5.2.
"""

from weir_engine.config import Policy
from weir_engine.kv.view import Missing
from weir_engine.latency.features import StepShape
from weir_engine.request import Request
from weir_engine.sched.both_ends import BothEnds
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.plan import Work
from weir_engine.sched.state import SchedulerState
from weir_engine.sched.step_room import StepRoom

Lacking = list[tuple[Missing, Request]]
"""What each request lacks; those that lack least first."""


class Restoring:
    """Lets requests back into a step when blocks and time are there for what they lack."""

    def __init__(self, state: SchedulerState, ends: BothEnds, room: StepRoom) -> None:
        self._state = state
        self._ends = ends
        self._room = room

    def parted(self, draft: StepDraft, running: list[Request]) -> tuple[list[Request], Lacking]:
        """Requests whose KV is whole, and those that lack some.

        In neither are requests whose blocks online fills in this very step.
        """
        if not self._ends.there:
            return running, []
        claimed = self._ends.claimed(draft, -draft.blocks_left) or frozenset()
        whole: list[Request] = []
        lacking: Lacking = []
        for request in running:
            if request.id in claimed:
                continue
            missing = self._ends.missing(request)
            if missing.blocks:
                lacking.append((missing, request))
            else:
                whole.append(request)
        lacking.sort(key=_least_first)
        return whole, lacking

    def fill(
        self,
        draft: StepDraft,
        policy: Policy,
        lacking: Lacking,
        limit_s: float,
        *,
        must_move: bool,
    ) -> bool:
        """Add them in order until time ends; True when one lacks blocks, for it and the rest."""
        slots = 0
        for missing, request in lacking:
            slots += missing.slots
            tokens = self._tokens(draft, request, limit_s, must_move=must_move)
            # A step that must move and has nothing else takes as long as the copies.
            in_time = self._ends.copies_within(slots, limit_s) or (must_move and not draft.work)
            if not tokens or not in_time:
                return False
            computed = request.computed_tokens
            blocks = draft.blocks_for(computed, tokens) + missing.fresh_blocks
            if not may_grow(draft, policy, blocks):
                return True
            draft.take_blocks(blocks, offline=True)
            draft.restore.append(request.id)
            if request.is_decoding:
                decode = StepShape.of_decodes([computed])
                draft.add_decodes([self._state.decode_work[request.id]], decode)
            else:
                work = Work(request_id=request.id, tokens=tokens, reason="offline-prefill")
                draft.add_prefill(work, computed)
        return False

    def _tokens(
        self, draft: StepDraft, request: Request, limit_s: float, *, must_move: bool
    ) -> int:
        """Tokens of it that there is time for."""
        computed = request.computed_tokens
        remaining = request.known_tokens - computed
        if not request.is_decoding:
            return self._room.chunk_tokens(draft, computed, remaining, limit_s, must_move=must_move)
        if request.output_tokens >= request.max_output_tokens or draft.tokens_left < 1:
            return 0  # its last token is in flight, or the step is full
        fits = self._room.fit(draft.shape, StepShape.of_decodes([computed]), limit_s)
        return int(fits or (must_move and not draft.work))


def may_grow(draft: StepDraft, policy: Policy, blocks: int) -> bool:
    """Whether offline work may take so many blocks more."""
    if blocks == 0:
        return True
    within = draft.offline_blocks + blocks <= policy.offline_kv_blocks
    return within and blocks <= draft.blocks_left


def _least_first(entry: tuple[Missing, Request]) -> tuple[int, int, float, str]:
    missing, request = entry
    return missing.blocks, missing.slots, request.arrival_s, request.id
