"""Which offline requests join a step: those that have a slot, blocks until their end, and time.

Source: HyGen Algorithm 1, phase OFFLINE; the threshold is Echo's (§5.3).
"""

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from typing import Final

from weir_engine.config import Policy
from weir_engine.ids import BlockHash
from weir_engine.kv.view import PrefixHit
from weir_engine.request import Request
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.kv_growth import GrowthToEnds, GrowthToPeak, KvGrowth, Need, known_need
from weir_engine.sched.online_room import OnlineRoom
from weir_engine.sched.overcommit import Overcommit
from weir_engine.sched.state import SchedulerState
from weir_engine.sched.step_room import StepRoom

_CANDIDATES: Final = 64
_MOST_CANDIDATES: Final = 1024  # what an agent has in its engine at most: four times 256 slots
_LEAST_SHARE: Final = 4  # a pool leaves one part in so many to tenants whose turn it is not
_SOLO = attrgetter("solo")


class OfflineAdmission:
    """Puts preempted requests, then those of the pool, into a step that has room for more."""

    def __init__(
        self,
        state: SchedulerState,
        step_room: StepRoom,
        online_room: OnlineRoom | None,
        *,
        to_peak: bool = False,
        overcommit: Overcommit | None = None,
    ) -> None:
        """``online_room`` None: admissions leave no block free.

        ``to_peak``: requests that lack blocks lose nothing, so what they hold at most is enough;
        else it is only where ``overcommit`` allows it (None: never).
        """
        self._to_peak = to_peak
        self._overcommit = overcommit
        self._state = state
        self._step_room = step_room
        self._online_room = online_room

    def fill(
        self,
        draft: StepDraft,
        policy: Policy,
        running: list[Request],
        now_s: float,
        limit_s: float,
        *,
        must_move: bool,
    ) -> None:
        """Admits in order until one does not fit; ``running`` are the offline requests that run.

        Where none runs, one that does not fit waits for online requests alone: others pass it.
        """
        full = free_slots(draft, policy) < 1 or draft.tokens_left < 1
        if full or any(map(_SOLO, running)):
            return
        growth: KvGrowth = self._growth()(draft, running)
        spare = self._spare_blocks(draft, now_s)
        most_tokens = policy.offline_kv_blocks * draft.block_size_tokens
        awaited: tuple[int, BlockHash] | None = None  # the block that the last one waited for
        for request in candidates(self._state, now_s, most_tokens):
            if free_slots(draft, policy) < 1:
                return
            if not may_join(draft, request, most_tokens) or _lacks(draft, request, awaited):
                continue
            hit = self._state.kv.hit(request)
            if hit.comes or waits_for_leader(self._state, draft, request, hit.tokens):
                index = hit.tokens // draft.block_size_tokens
                # Part of a block: its siblings may share less of it.
                awaited = None if hit.comes else (index, request.block_hashes[index])
                continue
            if draft.sure_hit(self._state.kv, request, hit) is not hit:
                continue  # this step would evict what it counts on
            remaining = request.known_tokens - hit.tokens
            tokens = self._step_room.chunk_tokens(
                draft, hit.tokens, remaining, limit_s, must_move=must_move
            )
            free = draft.blocks_left - spare
            need = self._need(growth, draft, policy, request, hit, free)
            fits = need.free <= free
            if tokens and not fits and draft.offline_seqs == 0:
                continue  # no offline request ends that would make room for it
            if tokens == 0 or not (fits and is_allowed(draft, policy, need)):
                return
            growth.admit(draft, request, hit.tokens, tokens)
            draft.admit(request, hit, tokens, reason="offline-admit")
            if request.solo:
                return

    def _growth(self) -> type[GrowthToEnds | GrowthToPeak]:
        counts_on_ends = self._overcommit is not None and self._overcommit.allowed
        return GrowthToPeak if self._to_peak or counts_on_ends else GrowthToEnds

    def _need(
        self,
        growth: KvGrowth,
        draft: StepDraft,
        policy: Policy,
        request: Request,
        hit: PrefixHit,
        free: float,
    ) -> Need:
        """What it asks for; alone one that would outgrow the ``free`` blocks may end before.

        What is free for its end may never be: online requests hold what the threshold leaves them.
        """
        adopted = draft.hit_blocks(request, hit)
        room = min(free, policy.offline_kv_blocks - draft.offline_blocks)
        need = growth.need(draft, request, hit.tokens, adopted, room=room)
        if draft.offline_seqs == 0 and need.free > room:
            return known_need(draft, request, hit.tokens, adopted)
        return need

    def _spare_blocks(self, draft: StepDraft, now_s: float) -> float:
        """What an admission leaves free for online to grow into."""
        if self._online_room is None:
            return 0.0
        others = draft.blocks_left + draft.offline_blocks
        return self._online_room.spare_blocks(self._state.kv.total_blocks - others, now_s)


def candidates(state: SchedulerState, now_s: float, most_tokens: int) -> Iterator[Request]:
    """Who is tried: preempted requests, then the first of the pool.

    Where most of those are longer than ``most_tokens`` now, more from behind them.
    """
    pool = state.pool
    found = pool.candidates(_CANDIDATES, now_s)
    if len(found) == _CANDIDATES and found[0].known_tokens > most_tokens:
        short = sum(request.known_tokens <= most_tokens for request in found)
        if short <= len(found) // _LEAST_SHARE:
            more = pool.candidates(_MOST_CANDIDATES, now_s)
            fitting = [request for request in more if request.known_tokens <= most_tokens]
            found = fitting[:_CANDIDATES]
    return chain(list(state.resuming.values()), found)


def anybody_fits(state: SchedulerState, draft: StepDraft, policy: Policy, now_s: float) -> bool:
    """True when one who waits is no longer than the threshold."""
    most_tokens = policy.offline_kv_blocks * draft.block_size_tokens
    return any(
        request.known_tokens <= most_tokens for request in candidates(state, now_s, most_tokens)
    )


def free_slots(draft: StepDraft, policy: Policy) -> int:
    """Requests that may still join the step's batch, negative where it has too many."""
    return min(draft.seqs_left, policy.offline_seq_slots - draft.offline_seqs)


def waits_for_leader(
    state: SchedulerState, draft: StepDraft, request: Request, hit_tokens: int
) -> bool:
    """True when another request computes the first block that it does not find (rule 6)."""
    index = hit_tokens // draft.block_size_tokens
    if index >= _useful_blocks(draft, request):
        return False
    missing = request.block_hashes[index]
    return missing in draft.computing or missing in state.inflight


def _lacks(draft: StepDraft, request: Request, awaited: tuple[int, BlockHash] | None) -> bool:
    """True for a sibling of one that waits: it lacks the same block at the same place."""
    if awaited is None:
        return False
    index, block_hash = awaited
    return index < _useful_blocks(draft, request) and request.block_hashes[index] == block_hash


def _useful_blocks(draft: StepDraft, request: Request) -> int:
    """Blocks that it may find: the last one of a prompt is always computed again."""
    return min((request.known_tokens - 1) // draft.block_size_tokens, len(request.block_hashes))


def may_join(draft: StepDraft, request: Request, most_tokens: int) -> bool:
    """False for what this very step preempted, and for a solo request that has company.

    Nor may what is longer than the threshold by itself: others go on meanwhile.
    """
    if request.id in draft.preempted or (request.solo and draft.offline_seqs):
        return False
    return request.known_tokens <= most_tokens


def is_allowed(draft: StepDraft, policy: Policy, need: Need) -> bool:
    """Whether it stays within the threshold until its end; alone it may turn out shorter."""
    if draft.offline_seqs == 0:
        return True
    return draft.offline_blocks + need.held <= policy.offline_kv_blocks
