"""First phase of a step: online work. Every decode runs; prefill fills what the SLOs allow.

Offline requests give way for blocks and slots. Source: HyGen Algorithm 1, phase ONLINE.
"""

from math import inf
from typing import NamedTuple, TypedDict

from weir_engine.latency.features import StepShape
from weir_engine.latency.models import LatencyModel
from weir_engine.request import Request
from weir_engine.sched.account import OnlineLoad
from weir_engine.sched.bookkeeping import Bookkeeping
from weir_engine.sched.both_ends import BothEnds
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.fewest_late import FewestLate
from weir_engine.sched.graph_sizing import keep_online_within
from weir_engine.sched.joining import PromptJoining
from weir_engine.sched.making_room import MakingRoom
from weir_engine.sched.order import OnlineOrder
from weir_engine.sched.pace import Pace
from weir_engine.sched.plan import Work
from weir_engine.sched.prompt_queue import queue_s, token_s
from weir_engine.sched.state import SchedulerState
from weir_engine.sched.step_kind import StepKind, kind_of

_MEDIAN = 0.5


class _Prompts(TypedDict):
    """Those fields of an ``OnlineLoad`` that need its step."""

    prompts_s: float | None
    prompts_delay_s: float


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
        order: OnlineOrder,
        pace: Pace | None,
        ends: BothEnds,
        joining: PromptJoining,
        splits_steps: bool = False,
        fewest_late: FewestLate | None = None,
    ) -> None:
        """``fewest_late``, where it is there, orders prompts instead of ``order``.

        ``splits_steps``: prompts and decodes get steps of their own where that is shorter.
        """
        self._state = state
        self._model = model
        self._books = books
        self._order = order
        self._pace = pace
        self._ends = ends
        self._making_room = MakingRoom(state, ends)
        self._joining = joining
        self._splits_steps = splits_steps
        shape = state.shape
        self._most_context = StepShape(decode_context=shape.max_seqs * shape.max_model_len_tokens)
        self._fewest_late = fewest_late
        self._sizes_by_graphs = model.graph_tokens > 0

    def fill(
        self, draft: StepDraft, now_s: float, busy_s: float, *, offline_prompts: bool = False
    ) -> OnlineLoad:
        """Add the online work; answers with the load that it makes (see there for the times).

        ``offline_prompts``: there are some that might join the step. Where they would take too long
        beside its decodes, these wait for the next step, or for ``decode_instead``.
        """
        there = self._by_phase()
        if there.prefilling or not self._state.only_online_runs:
            self._books.settle()  # the model is asked first, and must not learn amid a plan
        if self.may_split:
            draft.kind = self._kind(there, offline_prompts=offline_prompts)
        if draft.kind is StepKind.PREFILL:
            self._leave_out(draft, there.decoding)
        else:
            self._decodes(draft, there.decoding)
        return self._load_with_prompts(draft, there, now_s, busy_s)

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
                self._prefill(draft, prefilling, load)
            base_s = self._base_s(draft, there)
            prompts = self._prompts(draft, load, prefilling, base_s)
            load = load._replace(base_s=base_s, **prompts)
        return load

    def _base_s(self, draft: StepDraft, there: _Running) -> float:
        """Of the online work: until the decodes have their tokens, which may be the step after."""
        shape = draft.shape
        if not shape.is_empty:
            return draft.waiting_s + self._model.predict(shape)
        # A step of its prompts has a fixed part of its own, before any is in it.
        own = draft.waiting_s > 0 and bool(there.prefilling or self._state.waiting_online)
        return draft.waiting_s + (self._model.fixed_s if own else 0.0)

    def _prompts(
        self, draft: StepDraft, load: OnlineLoad, prefilling: list[Request], base_s: float
    ) -> _Prompts:
        """What the prompts that are there still need, and what offline work has cost them."""
        prompts = [*prefilling, *self._waiting(draft)]
        again = not draft.preempted.isdisjoint(self._state.running_online)
        if again or draft.lacks_room or any(request.output_tokens for request in prompts):
            # One of them waits for blocks, or for a later token, which has another due time.
            return _Prompts(prompts_s=None, prompts_delay_s=0.0)
        planned = draft.work[draft.decode_requests :]  # decodes come first
        done = {work.request_id: work.hit_tokens + work.tokens for work in planned}
        queue = []
        for request in prompts:
            computed = request.computed_tokens + done.get(request.id, 0)
            if computed < request.known_tokens:
                queue.append((request.known_tokens - computed, computed))
        rest_s = self._queue_s(draft, queue, self._books.prefill_limit(load)) if queue else 0.0
        return _Prompts(
            prompts_s=base_s + rest_s,
            prompts_delay_s=max((r.offline_delay_s for r in prompts), default=0.0),
        )

    def _load(self, draft: StepDraft, there: _Running, now_s: float, busy_s: float) -> OnlineLoad:
        decoding, prefilling = there
        if draft.preempted:
            decoding = [request for request in decoding if request.id not in draft.preempted]
        # Where the first token is still in flight the wait starts now.
        tokens_s = [now_s if (last := r.last_token_s) is None else last for r in decoding]
        cumulative_s = None
        if self._pace is not None and decoding:
            cumulative_s = min(self._pace.next_s(r, now_s + busy_s) for r in decoding)
        first: list[float] = []
        resuming = 0
        if prefilling or self._state.waiting_online:  # in most steps all have their first token
            waiting = self._waiting(draft)
            first = [r.arrival_s for r in [*prefilling, *waiting] if r.output_tokens == 0]
            resuming = len([r for r in waiting if r.output_tokens])
        return OnlineLoad(
            now_s=now_s,
            busy_s=busy_s,
            decoders=draft.decode_requests + draft.waiting_decodes.decode_requests,
            earliest_token_s=min(tokens_s, default=None),
            earliest_cumulative_s=cumulative_s,
            prefills=len(first) + resuming,
            earliest_arrival_s=min(first, default=None),
            base_s=self._base_s(draft, there),
            idle_step_s=self._model.fixed_s,
        )

    def _waiting(self, draft: StepDraft) -> list[Request]:
        waiting = self._state.waiting_online.values()
        if not draft.refused:
            return list(waiting)
        return [request for request in waiting if request.id not in draft.refused]

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

    def _prefill(self, draft: StepDraft, running: list[Request], load: OnlineLoad) -> None:
        limit_s = self._prefill_limit(draft, running, load) - draft.waiting_s
        admits = True
        ranked = self._ranked(draft, running, limit_s, load.now_s + load.busy_s)
        if self._sizes_by_graphs and ranked:
            keep_online_within(draft, self._model, self._tokens_left(ranked[0]))
        for request in ranked:
            if request.id not in self._state.running_online:
                admits = admits and self._admit(draft, request, limit_s)
            elif request.id not in draft.preempted:
                self._go_on(draft, request, limit_s)

    def _ranked(
        self, draft: StepDraft, running: list[Request], limit_s: float, start_s: float
    ) -> list[Request]:
        """Prompts that are begun or wait, the one to serve first at the front of them."""
        waiting = self._waiting(draft)
        if self._fewest_late is None:
            return [*self._order.order(running, start_s), *self._order.order(waiting, start_s)]
        if len(running) + len(waiting) < 2:
            return [*running, *waiting]
        most, decodes = self._state.shape.max_batched_tokens, draft.decode_shape
        each_s = token_s(
            self._model,
            decodes,
            limit_s=limit_s,
            step_tokens=most,
            between_s=draft.waiting_s,
        )
        begun: list[Request] = []
        if self._sizes_by_graphs:  # that a prompt takes several steps is no reason to overtake it
            begun = sorted(running, key=lambda request: request.arrival_s)
            running = []
            start_s += each_s * sum(map(self._tokens_left, begun))
        others = [*running, *waiting]
        return [*begun, *self._fewest_late.order(others, start_s, each_s, self._tokens_left)]

    def _tokens_left(self, request: Request) -> int:
        if request.id in self._state.running_online:
            return request.remaining_tokens
        return request.known_tokens - self._state.kv.hit(request).tokens

    def _go_on(self, draft: StepDraft, request: Request, limit_s: float) -> None:
        tokens = self._chunk(draft, request, request.computed_tokens, limit_s)
        if tokens == 0:
            return
        blocks = draft.blocks_for(request.computed_tokens, tokens)
        if blocks > draft.blocks_left and not self._making_room.make(draft, request, blocks):
            draft.lacks_room = True
            return
        draft.take_blocks(blocks, offline=False)
        work = Work(request_id=request.id, tokens=tokens, reason="online-prefill")
        draft.ends_prompt |= tokens == request.remaining_tokens
        draft.add_prefill(work, request.computed_tokens)

    def _prefill_limit(
        self, draft: StepDraft, prefilling: list[Request], load: OnlineLoad
    ) -> float:
        """Longest step that prefill may fill, asked again with what chunks of that length take."""
        limit_s = self._books.prefill_limit(load)
        if limit_s == inf:
            return inf
        queue = [
            (request.known_tokens - request.computed_tokens, request.computed_tokens)
            for request in (*prefilling, *self._waiting(draft))
        ]
        chunked_s = self._queue_s(draft, queue, limit_s)
        return self._books.prefill_limit(load._replace(prompts_s=chunked_s))

    def _queue_s(self, draft: StepDraft, queue: list[tuple[int, int]], limit_s: float) -> float:
        return queue_s(
            self._model,
            draft.decode_shape,
            queue,
            limit_s=limit_s - draft.waiting_s,
            between_s=draft.waiting_s,
            step_tokens=self._state.shape.max_batched_tokens,
            least_steps=len(queue) if self._joining.staggers else 0,
        )

    def _admit(self, draft: StepDraft, request: Request, limit_s: float) -> bool:
        hit = draft.sure_hit(self._state.kv, request, self._state.kv.hit(request))
        tokens = self._chunk(draft, request, hit.tokens, limit_s)
        if tokens == 0:
            return False
        # vLLM admits a prompt only when all of it fits.
        whole = draft.blocks_behind(hit.tokens, request.known_tokens - hit.tokens)
        missing_slot = draft.seqs_left < 1
        lacking = whole + draft.hit_blocks(hit) - draft.blocks_left
        if missing_slot or self._ends.claimed(draft, lacking) is None:
            # Those who give way may hold blocks of the hit: it is counted whole.
            whole += -(-hit.tokens // draft.block_size_tokens)
            made = self._making_room.make(
                draft, request, whole, slots=int(missing_slot), admit=True
            )
            if not made:
                draft.lacks_room = True
                return False
            # Free now, what they held may be evicted by the step's allocations before this one.
            sure = draft.sure_hit(self._state.kv, request, hit)
            if sure is not hit:
                hit = sure
                tokens = max(tokens, self._chunk(draft, request, sure.tokens, limit_s))
        draft.admit(request, hit, tokens, reason="online-admit")
        draft.ends_prompt |= hit.tokens + tokens == request.known_tokens
        return True

    def _chunk(
        self, draft: StepDraft, request: Request, computed_tokens: int, limit_s: float
    ) -> int:
        upper = min(request.known_tokens - computed_tokens, draft.tokens_left)
        if upper < 1 or self._joining.keeps_out(draft):
            return 0
        tokens = self._model.max_prefill_tokens(
            draft.shape, computed_tokens, limit_s, _MEDIAN, upper
        )
        if tokens == 0 and draft.prefill_requests == 0:
            # Decoders may fill the limit alone: prefill still moves, a block at a time.
            return min(upper, self._state.shape.block_size_tokens)
        return tokens
