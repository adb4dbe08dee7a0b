"""Online prompts of a step: who goes first, how much of each, and how long they still take."""

from math import inf

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
from weir_engine.sched.plan import Work
from weir_engine.sched.prompt_queue import queue_s, token_s
from weir_engine.sched.state import SchedulerState

_MEDIAN = 0.5


class OnlinePrompts:
    """Puts prompts, begun or waiting, beside what a draft has already."""

    def __init__(  # noqa: PLR0913 - its seats
        self,
        state: SchedulerState,
        *,
        model: LatencyModel,
        books: Bookkeeping,
        order: OnlineOrder,
        ends: BothEnds,
        making_room: MakingRoom,
        joining: PromptJoining,
        fewest_late: FewestLate | None = None,
    ) -> None:
        """``fewest_late``, where it is there, orders prompts instead of ``order``."""
        self._state = state
        self._model = model
        self._books = books
        self._order = order
        self._ends = ends
        self._making_room = making_room
        self._joining = joining
        self._fewest_late = fewest_late
        self._sizes_by_graphs = model.graph_tokens > 0

    def waiting(self, draft: StepDraft) -> list[Request]:
        """Those that wait for their first step or their next, but for the refused."""
        waiting = self._state.waiting_online.values()
        if not draft.refused:
            return list(waiting)
        return [request for request in waiting if request.id not in draft.refused]

    def fill(self, draft: StepDraft, running: list[Request], load: OnlineLoad) -> None:
        """Add what the step takes of those that are begun, ``running``, and of those that wait."""
        limit_s = self._prefill_limit(draft, running, load) - draft.waiting_s
        draft.prompts_share = self._share_steps(draft, running, load)
        admits = True
        ranked = self._ranked(draft, running, limit_s, load.now_s + load.busy_s)
        if self._sizes_by_graphs and ranked:
            keep_online_within(draft, self._model, self._tokens_left(ranked[0]))
        for request in ranked:
            if request.id not in self._state.running_online:
                admits = admits and self._admit(draft, request, limit_s)
            elif request.id not in draft.preempted:
                self._go_on(draft, request, limit_s)

    def timed(
        self, draft: StepDraft, running: list[Request], load: OnlineLoad, base_s: float
    ) -> OnlineLoad:
        """The load with what the prompts still need, and what offline work has cost them.

        ``base_s``: the step as it is now.
        """
        prompts = [*running, *self.waiting(draft)]
        again = not draft.preempted.isdisjoint(self._state.running_online)
        if again or draft.lacks_room or any(request.output_tokens for request in prompts):
            # One of them waits for blocks, or for a later token, which has another due time.
            return load._replace(base_s=base_s, prompts_s=None, prompts_delay_s=0.0)
        planned = draft.work[draft.decode_requests :]  # decodes come first
        done = {work.request_id: work.hit_tokens + work.tokens for work in planned}
        queue = []
        for request in prompts:
            computed = request.computed_tokens + done.get(request.id, 0)
            if computed < request.known_tokens:
                queue.append((request.known_tokens - computed, computed))
        rest_s = self._queue_s(draft, queue, self._books.prefill_limit(load)) if queue else 0.0
        return load._replace(
            base_s=base_s,
            prompts_s=base_s + rest_s,
            prompts_delay_s=max((r.offline_delay_s for r in prompts), default=0.0),
        )

    def _ranked(
        self, draft: StepDraft, running: list[Request], limit_s: float, start_s: float
    ) -> list[Request]:
        """Prompts that are begun or wait, the one to serve first at the front of them."""
        waiting = self.waiting(draft)
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
        chunked_s = self._queue_s(draft, self._queue(draft, prefilling), limit_s)
        return self._books.prefill_limit(load._replace(prompts_s=chunked_s))

    def _share_steps(self, draft: StepDraft, running: list[Request], load: OnlineLoad) -> bool:
        """Whether prompts that would have steps of their own share them all the same."""
        if not self._joining.staggers:
            return False
        queue = self._queue(draft, running)
        if len(queue) < 2:
            return False
        shared_s = self._queue_s(draft, queue, inf, shared=True)
        return self._books.prompts_share_steps(load._replace(prompts_s=shared_s))

    def _queue(self, draft: StepDraft, running: list[Request]) -> list[tuple[int, int]]:
        """The new and computed tokens of those that are begun or wait."""
        return [
            (request.known_tokens - request.computed_tokens, request.computed_tokens)
            for request in (*running, *self.waiting(draft))
        ]

    def _queue_s(
        self,
        draft: StepDraft,
        queue: list[tuple[int, int]],
        limit_s: float,
        *,
        shared: bool = False,
    ) -> float:
        """``shared``: in as few steps as they fill, even where each has one of its own."""
        return queue_s(
            self._model,
            draft.decode_shape,
            queue,
            limit_s=limit_s - draft.waiting_s,
            between_s=draft.waiting_s,
            step_tokens=self._state.shape.max_batched_tokens,
            least_steps=len(queue) if self._joining.staggers and not shared else 0,
        )

    def _admit(self, draft: StepDraft, request: Request, limit_s: float) -> bool:
        hit = draft.sure_hit(self._state.kv, request, self._state.kv.hit(request))
        tokens = self._chunk(draft, request, hit.tokens, limit_s)
        if tokens == 0:
            return False
        # vLLM admits a prompt only when all of it fits.
        whole = draft.blocks_behind(hit.tokens, request.known_tokens - hit.tokens)
        missing_slot = draft.seqs_left < 1
        lacking = whole + draft.hit_blocks(request, hit) - draft.blocks_left
        if missing_slot or self._ends.claimed(draft, lacking) is None:
            # Those who give way may hold blocks of the hit.
            whole += draft.blocks_to_adopt(request, hit)
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
