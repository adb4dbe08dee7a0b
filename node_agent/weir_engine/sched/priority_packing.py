"""BROS's packing: online by least remaining time, offline by fewest copies, and replacement.

Reads the scheduler's state and fills a draft. Source: BROS §4.2, Algorithm 1.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, filterfalse
from math import inf

from typing_extensions import override

from weir_engine.config import Policy
from weir_engine.ids import RequestId
from weir_engine.latency.features import EMPTY_SHAPE
from weir_engine.latency.models import LatencyModel
from weir_engine.latency.swap import SwapModel
from weir_engine.request import Request
from weir_engine.sched.account import StepLimit
from weir_engine.sched.batch_size import BatchSize
from weir_engine.sched.both_ends import BothEnds
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.listener import StepListener
from weir_engine.sched.offline_packing import OfflinePacking
from weir_engine.sched.packed_step import PackedStep, Share
from weir_engine.sched.packing import Packed
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sched.preemption import Displaceable, Lack
from weir_engine.sched.remaining_time import RemainingTime
from weir_engine.sched.state import SchedulerState

_IN_TIME, _LATE = "least-remaining", "least-remaining-late"


class PriorityPacking(StepListener):
    """Packs the most urgent online requests, then offline ones, into one batch.

    A step ends before the deadline of the most urgent online request that can still meet it; late
    ones go first but bound nothing. Offline requests that run go before those that wait, each by
    its checkpointed blocks, then slots, then arrival. When the batch is full an offline request
    replaces the least urgent online one, if that one still meets its deadline in the step after.

    Source: BROS §4.2, Algorithm 1. Deviations: a prompt that lacks blocks lets running requests
    pass (at lines 8-9 they would wait for it), and is admitted when all of it fits; online is
    dropped only for a running request, never for an admission, which would trade one deadline for
    another; steps with offline work are held to the 95% quantile of their prediction, a replaced
    request too (design §3, rule 3); with a paged cache offline gives way by recomputation.
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
        """``tpot_s`` is the objective that ``remaining`` has for tokens after the first."""
        self._state = state
        self._ends = BothEnds(state.kv, swap)
        self._model = model
        self._remaining = remaining
        self._batch = batch
        self._offline = OfflinePacking(
            state, model=model, remaining=remaining, batch=batch, swap=swap, tpot_s=tpot_s
        )

    def fill(self, draft: StepDraft, policy: Policy, now_s: float) -> Packed:
        """Algorithm 1."""
        step = PackedStep(draft)
        limit_s, late, blocked = self._pack_online(draft, step, now_s)
        if policy.offline_seq_slots and policy.offline_kv_blocks:
            limit_s = min(limit_s, inf if policy.step_budget_s is None else policy.step_budget_s)
            self._offline.fill(draft, step, policy, now_s, limit_s, blocked=blocked)
        step.write()
        limit = StepLimit(seconds=limit_s, reason=_LATE if late else _IN_TIME)
        return Packed(online_shape=step.online_shape, limit=limit)

    @override
    def on_begin(self, plan: StepPlan, requests: Mapping[RequestId, Request]) -> None:
        """The batch size learns whether time ran out."""
        self._batch.on_step(late=plan.limit_reason == _LATE)

    @override
    def on_commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """The moving average learns the step's duration."""
        self._remaining.on_step(outcome.ended_s - outcome.started_s)

    # -- online: lines 3 to 14 --------------------------------------------------------------

    def _queue(self, now_s: float) -> Iterator[tuple[float, Request]]:
        running = self._state.running_online.values()
        waiting = self._state.waiting_online.values()
        # Whoever ran before is pending, blocks or not; the others wait in order of arrival.
        pending = chain(filter(_has_tokens_to_plan, running), filter(_ran_before, waiting))
        return self._remaining.poll(pending, filterfalse(_ran_before, waiting), now_s)

    def _least_feasible(
        self, queue: Iterator[tuple[float, Request]]
    ) -> tuple[float, list[tuple[float, Request]]]:
        """The time left to the most urgent request that can be in time, and those read for it."""
        read = []
        for left_s, request in queue:
            read.append((left_s, request))
            if left_s > 0 and left_s >= self._alone_s(request):
                return left_s, read
        return inf, read

    def _alone_s(self, request: Request) -> float:
        """The step with this request alone in it."""
        if request.is_decoding:
            return self._model.predict(EMPTY_SHAPE.with_decode(request.known_tokens))
        tokens = min(request.remaining_tokens, self._state.shape.max_batched_tokens)
        return self._model.predict(EMPTY_SHAPE.with_prefill(tokens, request.computed_tokens))

    def _pack_online(
        self, draft: StepDraft, step: PackedStep, now_s: float
    ) -> tuple[float, bool, bool]:
        """(The step's limit, whether time ran out, whether a prompt lacks blocks)."""
        queue = self._queue(now_s)
        limit_s, read = self._least_feasible(queue)
        blocked = False
        for left_s, request in chain(read, queue):
            if len(step) == self._batch.requests:
                break
            runs = request.id in self._state.running
            if request.id in draft.preempted or (blocked and not runs):
                continue
            share = self._online_share(draft, request, left_s, runs=runs)
            if share.tokens > step.tokens_left:
                blocked |= not runs
                continue
            if step.online and self._model.predict(step.shape_with(share)) > limit_s:
                return limit_s, True, blocked
            dropped = len(draft.preempt)
            if not self._room(draft, step, share):
                blocked |= not runs
                continue
            if share.hit is not None and len(draft.preempt) > dropped:
                # Those who gave way may have held what it found: that is free now, or taken.
                share = self._online_share(draft, request, left_s, runs=False)
                if not self._still_fits(draft, step, share, limit_s):
                    blocked = True
                    continue
            step.take(share)
        return limit_s, False, blocked

    def _still_fits(self, draft: StepDraft, step: PackedStep, share: Share, limit_s: float) -> bool:
        if share.tokens > step.tokens_left or share.blocks > draft.blocks_left:
            return False
        return not step.online or self._model.predict(step.shape_with(share)) <= limit_s

    def _online_share(
        self, draft: StepDraft, request: Request, left_s: float, *, runs: bool
    ) -> Share:
        most = self._state.shape.max_batched_tokens
        if runs:
            computed, tokens = request.computed_tokens, min(request.remaining_tokens, most)
            blocks = draft.blocks_for(computed, tokens)
            return Share(request, tokens, computed, blocks, left_s)
        hit = draft.sure_hit(self._state.kv, request, self._state.kv.hit(request))
        tokens = min(request.known_tokens - hit.tokens, most)
        # For all of it: admitted by its first piece it would take the others from one that runs,
        # which waits, comes back by its own first piece and takes them again, for ever.
        blocks = draft.blocks_behind(hit.tokens, request.known_tokens - hit.tokens)
        blocks += draft.hit_blocks(request, hit)
        return Share(request, tokens, hit.tokens, blocks, left_s, hit)

    # -- room for online: FindPreemptBlock, §5.2 --------------------------------------------

    def _room(self, draft: StepDraft, step: PackedStep, share: Share) -> bool:
        """Free blocks, then fronts of offline's, then offline's whole blocks, then online's."""
        slots = int(share.hit is not None and draft.seqs_left < 1)
        lacking = share.blocks - draft.blocks_left
        if not slots and (lacking <= 0 or self._ends.claimed(draft, lacking) is not None):
            return True
        offline = Displaceable(
            self._droppable(draft, self._state.running_offline.values()),
            releasable=self._state.kv.releasable_blocks,
            adopted_blocks=draft.adopted_blocks,
        )
        if share.hit is not None:  # those who give way may hold blocks of the hit
            lacking += draft.blocks_to_adopt(share.request, share.hit)
            lacking -= draft.hit_blocks(share.request, share.hit)
        victims = offline.victims(Lack(lacking, slots))
        if victims is None and share.hit is not None:
            return False
        for victim, freed in offline.everyone() if victims is None else victims:
            draft.drop(victim, freed, reason="online-needs-room")
        return self._drop_online(draft, step, share)

    def _drop_online(self, draft: StepDraft, step: PackedStep, share: Share) -> bool:
        """The requests with the most time left go, until the share fits; False: it never does."""
        taken = {other.request.id for other in step.online} | {share.request.id}
        others = self._droppable(draft, self._state.running_online.values())
        others = [other for other in others if other.id not in taken]
        others.sort(key=lambda other: (self._remaining.of(other, 0.0), other.arrival_s, other.id))
        while share.blocks > draft.blocks_left:
            if not others:
                return False
            self._drop(draft, others.pop(), "more-urgent-needs-room")
        return True

    def _droppable(self, draft: StepDraft, running: Iterable[Request]) -> list[Request]:
        return [request for request in running if request.id not in draft.preempted]

    def _drop(self, draft: StepDraft, request: Request, reason: str) -> None:
        draft.drop(request, self._state.kv.releasable_blocks([request.id]), reason=reason)


def _has_tokens_to_plan(request: Request) -> bool:
    return request.output_tokens < request.max_output_tokens  # else the last is in flight


def _ran_before(request: Request) -> bool:
    return request.preemptions > 0
