"""BROS's offline half of a step: those that run by fewest copies, then those that wait.

What online work takes is decided before, in ``priority_packing``. Source: BROS §4.2, Algorithm 1.
"""

from math import inf
from typing import Final

from weir_engine.config import Policy
from weir_engine.ids import RequestId
from weir_engine.kv.view import PrefixHit
from weir_engine.latency.models import LatencyModel
from weir_engine.latency.swap import SwapModel
from weir_engine.request import Request
from weir_engine.sched.batch_size import BatchSize
from weir_engine.sched.both_ends import BothEnds
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.kv_growth import GrowthToEnds, GrowthToPeak, KvGrowth
from weir_engine.sched.offline_admission import (
    anybody_fits,
    candidates,
    is_allowed,
    may_join,
    waits_for_leader,
)
from weir_engine.sched.packed_step import PackedStep, Share
from weir_engine.sched.remaining_time import RemainingTime
from weir_engine.sched.state import SchedulerState

_GUARD: Final = 0.95  # quantile of the step's duration that a deadline must survive
_LEAST_PIECE_TOKENS: Final = 8  # a shorter one of a prompt is not worth a place in the batch


class OfflinePacking:
    """Puts offline requests into a step that has its online ones, or in the place of the last.

    Source: BROS §4.2, Algorithm 1, lines 15 to 33. Deviations: the paper has neither an offline
    threshold nor a bound on a step's tokens. A request above the threshold keeps nobody waiting who
    fits under it, and below the whole cache none is admitted that would outgrow it with those that
    run; where no offline request runs, one that lacks blocks waits for online requests alone, and
    others pass it. A prompt goes whole or waits; one that no step takes whole beside the decodes
    that it has is cut to what the step has left, in tokens and in time.
    """

    def __init__(
        self,
        state: SchedulerState,
        *,
        model: LatencyModel,
        remaining: RemainingTime,
        batch: BatchSize,
        swap: SwapModel,
        tpot_s: float,
    ) -> None:
        """``tpot_s``: the time to an online token, which no step beside a decode may exceed."""
        self._tpot_s = tpot_s
        self._state = state
        self._ends = BothEnds(state.kv, swap)
        self._growth: type[GrowthToEnds | GrowthToPeak] = (
            GrowthToPeak if self._ends.there else GrowthToEnds
        )
        self._model = model
        self._remaining = remaining
        self._batch = batch
        self._swap = swap

    def fill(
        self,
        draft: StepDraft,
        step: PackedStep,
        policy: Policy,
        now_s: float,
        limit_s: float,
        *,
        blocked: bool,
    ) -> None:
        """Add what fits within ``limit_s``; with ``blocked`` online waits for all free blocks."""
        claimed = self._ends.claimed(draft, -draft.blocks_left) or frozenset()
        room = 0 if blocked else max(draft.blocks_left, 0)
        offline = self._state.running_offline.values()
        running = [request for request in offline if request.id not in draft.preempted]
        lacking: list[Share] = []
        for whole in self._running_shares(draft, running, claimed):
            share = self._cut(draft, step, policy, whole, limit_s)
            if not self._has_room(draft, policy, share, room):
                lacking.append(share)
                continue
            if not self._fits(step, share) or not self._pack_or_replace(step, share, limit_s):
                return
            room -= share.blocks
        if not lacking:
            self._admit(draft, step, policy, now_s, limit_s, room=room)
        elif not step.offline and self._outgrown(draft, policy, lacking):
            if len(running) > 1 or anybody_fits(self._state, draft, policy, now_s):
                self._give_way(draft, running)
        elif not step.offline and not step.online and len(running) > 1:
            self._give_way(draft, running)

    def _outgrown(self, draft: StepDraft, policy: Policy, lacking: list[Share]) -> bool:
        """True where all lack what the threshold does not allow: nothing that ends changes that."""
        if policy.offline_kv_blocks >= self._state.kv.total_blocks:
            return False
        return not any(self._within(draft, policy, share) for share in lacking)

    def _give_way(self, draft: StepDraft, running: list[Request]) -> None:
        """The last arrival frees its blocks; alone it does so for others that fit."""
        last = max(running, key=lambda request: (request.arrival_s, request.id))
        freed = self._state.kv.releasable_blocks([last.id])
        draft.drop(last, freed, reason="offline-needs-room")

    def _running_shares(
        self, draft: StepDraft, running: list[Request], claimed: frozenset[RequestId]
    ) -> list[Share]:
        """Those whose KV this step leaves alone, the one that misses least first."""
        shares = []
        for request in running:
            if request.id in claimed or request.output_tokens >= request.max_output_tokens:
                continue
            missing = self._ends.missing(request)
            tokens = min(request.remaining_tokens, self._state.shape.max_batched_tokens)
            share = Share(
                request,
                tokens,
                request.computed_tokens,
                draft.blocks_for(request.computed_tokens, tokens) + missing.fresh_blocks,
                slots=missing.slots,
                restores=missing.blocks > 0,
            )
            key = (missing.blocks, missing.slots, request.arrival_s, request.id)
            shares.append((key, share))
        shares.sort(key=lambda entry: entry[0])
        return [share for _, share in shares]

    def _admit(
        self,
        draft: StepDraft,
        step: PackedStep,
        policy: Policy,
        now_s: float,
        limit_s: float,
        *,
        room: int,
    ) -> None:
        state = self._state
        if room < 1 or any(request.solo for request in state.running_offline.values()):
            return
        most_tokens = policy.offline_kv_blocks * draft.block_size_tokens
        bounded = policy.offline_kv_blocks < state.kv.total_blocks
        running = list(state.running_offline.values()) if bounded else []
        growth: KvGrowth = self._growth(draft, running)
        for request in candidates(state, now_s, most_tokens):
            if draft.seqs_left < 1 or draft.offline_seqs >= policy.offline_seq_slots:
                return
            if not may_join(draft, request, most_tokens):
                continue
            hit = state.kv.hit(request)
            leads = not (hit.comes or waits_for_leader(state, draft, request, hit.tokens))
            if not leads or draft.sure_hit(state.kv, request, hit) is not hit:
                continue  # others compute what it lacks, or the step would evict what it counts on
            hit = _hit_within(draft, policy, request, hit)
            tokens = min(request.known_tokens - hit.tokens, state.shape.max_batched_tokens)
            # Nothing is admitted that could not be computed whole.
            whole = draft.blocks_behind(hit.tokens, request.known_tokens - hit.tokens)
            adopted = draft.hit_blocks(request, hit)
            share = Share(request, tokens, hit.tokens, whole + adopted, hit=hit)
            share = self._cut(draft, step, policy, share, limit_s)
            allowed = policy.offline_kv_blocks - draft.offline_blocks
            need = growth.need(draft, request, hit.tokens, adopted, room=allowed)
            has_room = self._has_room(draft, policy, share, room)
            if share.tokens and not has_room and draft.offline_seqs == 0:
                continue  # no offline request ends that would make room for it
            fits = has_room and self._fits(step, share)
            if not fits or (bounded and not is_allowed(draft, policy, need)):
                return
            if not self._pack_or_replace(step, share, limit_s):
                return
            growth.admit(draft, request, hit.tokens, share.tokens)
            room -= share.blocks
            if request.solo:
                return

    def _cut(
        self, draft: StepDraft, step: PackedStep, policy: Policy, share: Share, limit_s: float
    ) -> Share:
        """Of a prompt that no step takes whole beside its decodes, what this one has left for it.

        Its tokens are then 0 where that is too little.
        """
        if share.tokens == 1:
            return share
        beside = self._state.shape.max_batched_tokens - step.shape.decode_requests
        if share.tokens <= beside and not self._outlasts(step, policy, share, limit_s):
            return share
        computed = share.computed_tokens
        upper = max(min(share.tokens, step.tokens_left), 0)
        tokens = self._model.max_prefill_tokens(step.shape, computed, limit_s, _GUARD, upper)
        if tokens < min(_LEAST_PIECE_TOKENS, share.tokens, beside):
            tokens = 0
        if share.hit is not None:  # its blocks are for all of it, or it is not admitted
            return share._replace(tokens=tokens)
        less = draft.blocks_for(computed, share.tokens) - draft.blocks_for(computed, tokens)
        return share._replace(tokens=tokens, blocks=share.blocks - less)

    def _outlasts(self, step: PackedStep, policy: Policy, share: Share, limit_s: float) -> bool:
        """True where a step of it and its decodes alone is longer than any may be from now on."""
        if limit_s == inf:
            return False
        decodes = step.shape._replace(prefill_tokens=0, prefill_history=0.0, prefill_requests=0)
        whole = decodes.with_prefill(share.tokens, share.computed_tokens)
        budget_s = inf if policy.step_budget_s is None else policy.step_budget_s
        return self._model.predict_high(whole, _GUARD) > min(self._tpot_s, budget_s)

    def _fits(self, step: PackedStep, share: Share) -> bool:
        return 0 < share.tokens <= step.tokens_left

    def _has_room(self, draft: StepDraft, policy: Policy, share: Share, room: int) -> bool:
        """FindBlock: free blocks for it, within the threshold."""
        if share.blocks == 0:
            return True
        return share.blocks <= room and self._within(draft, policy, share)

    def _within(self, draft: StepDraft, policy: Policy, share: Share) -> bool:
        return draft.offline_blocks + share.blocks <= policy.offline_kv_blocks

    def _pack_or_replace(self, step: PackedStep, share: Share, limit_s: float) -> bool:
        """Lines 21 to 32: into the batch, or in the place of the least urgent online request."""
        if len(step) < self._batch.requests:
            if self._iteration_s(step, share) > limit_s:
                return False
            step.take(share)
            return True
        if not step.online:
            return False
        least_s = step.online[-1].left_s
        with_it_s = self._iteration_s(step, share, without_last_online=True)
        next_s = self._model.high(self._remaining.average_s, _GUARD)
        if with_it_s > limit_s or with_it_s + next_s > least_s:
            return False
        step.take_back_online()
        step.take(share)
        return True

    def _iteration_s(
        self, step: PackedStep, share: Share, *, without_last_online: bool = False
    ) -> float:
        shape = step.shape_with(share, without_last_online=without_last_online)
        execution_s = self._model.high(self._model.predict(shape), _GUARD)
        return self._swap.iteration_s(execution_s, step.slots + share.slots)


def _hit_within(draft: StepDraft, policy: Policy, request: Request, hit: PrefixHit) -> PrefixHit:
    """The hit without a block to copy where the threshold has no room for that and its copy.

    Nothing else would ever make room: the request, and all behind it, would wait for ever.
    """
    copied = hit.tokens % draft.block_size_tokens
    blocks = draft.blocks_behind(hit.tokens, request.known_tokens - hit.tokens)
    if not copied or blocks + draft.hit_blocks(request, hit) <= policy.offline_kv_blocks:
        return hit
    whole = hit.tokens // draft.block_size_tokens
    tokens = whole * draft.block_size_tokens
    return PrefixHit(tokens=tokens, free_blocks=min(hit.free_blocks, whole))
