"""An engine in virtual time: executes plans on a KV manager and a cost model, as vLLM would.

It obeys; a plan that does not fit raises. No decision belongs here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from weir_engine.errors import InvariantError
from weir_engine.ids import BlockHash, RequestId
from weir_engine.kv.manager import KvManager
from weir_engine.kv.sharing import distinct_tokens
from weir_engine.kv.view import PrefixHit
from weir_engine.latency.swap import SwapModel
from weir_engine.request import Request
from weir_engine.sched.plan import StepPlan
from weir_engine.sim.cost import StepCost
from weir_engine.sim.cpu_lane import AttentionLane
from weir_engine.sim.hashes import BlockHasher
from weir_engine.sim.recorded_cost import RecordedCost
from weir_engine.sim.workload import RequestSpec, Segment, output_key


@dataclass(kw_only=True, slots=True)
class Running:
    """A request as the engine has it: the scheduler's object and what only its sender knows.

    ``served_tokens``: the most of its tokens that were ever computed or found in the cache;
    ``batch``: the number of the last batch that it was in, None before.
    """

    request: Request
    output_tokens: int
    hashes: list[BlockHash]
    tokens_s: list[float] = field(default_factory=list)
    served_tokens: int = 0
    batch: int | None = None


class StepTokens(NamedTuple):
    """Tokens of a step by class; ``offline_decoded`` are those computed one at a time.

    Of ``offline_served`` a token counts once, in the step that first has it, computed or found in
    the cache.
    """

    online: int
    offline_computed: int
    offline_served: int
    offline_decoded: int


_Part = tuple[int, int, bool]


class _Batch(NamedTuple):
    """What the engine computes in a step, and who gets something from it.

    ``slots`` were copied back from the host for it.
    """

    parts: list[_Part]
    online: list[_Part]
    yields: list[RequestId]
    filled: list[Request]
    tokens: StepTokens
    slots: int


class Executed(NamedTuple):
    """What a plan takes and yields: ``yields`` get a token when the step ends.

    ``on_cpu`` get one too, from the CPU lane; ``refused`` were turned away. The step fills the last
    token of a block for those in ``filled``. ``tokens`` is what it computes.
    """

    seconds: float
    online_s: float
    yields: tuple[RequestId, ...]
    filled: tuple[Request, ...]
    tokens: StepTokens
    on_cpu: tuple[RequestId, ...] = ()
    refused: tuple[Running, ...] = ()


class SimEngine:
    """Blocks, batch and time of one replica."""

    def __init__(
        self,
        *,
        kv: KvManager,
        cost: StepCost,
        rng: np.random.Generator,
        lane: AttentionLane | None = None,
        swap: SwapModel | None = None,
    ) -> None:
        """``swap`` (None: no time) is the link that overwritten KV slots are copied over."""
        self.kv = kv
        self._swap = swap or SwapModel()
        self._copied_out = 0  # slots that the step before overwrote
        self._lane = lane
        self._cost = cost
        self._recorded = cost.in_order(rng) if isinstance(cost, RecordedCost) else None
        self._empty_s = cost.work_s(())
        self._rng = rng
        self._hasher = BlockHasher(kv.block_size_tokens)
        self._known: dict[RequestId, Running] = {}
        self._batches = 0

    @property
    def known(self) -> Mapping[RequestId, Running]:
        """Requests that were taken in and have not ended."""
        return self._known

    def __len__(self) -> int:
        return len(self._known)

    def accept(self, spec: RequestSpec, arrival_s: float) -> Request:
        """Take a request in; the scheduler gets what this returns."""
        output = Segment(key=output_key(spec.id), tokens=spec.output_tokens)
        hashes = self._hasher.hashes((*spec.segments, output))
        request = Request(
            id=spec.id,
            klass=spec.klass,
            arrival_s=arrival_s,
            prompt_tokens=spec.prompt_tokens,
            max_output_tokens=spec.output_tokens,
            block_hashes=hashes[: spec.prompt_tokens // self.kv.block_size_tokens],
            group=spec.group,
        )
        self._known[spec.id] = Running(
            request=request, output_tokens=spec.output_tokens, hashes=hashes
        )
        self.kv.expect(request)
        return request

    def poll(self, now_s: float) -> None:
        """Let time pass for what runs beside the steps."""
        if self._lane is not None:
            self._lane.poll(now_s)

    def start(self, plan: StepPlan) -> Executed:
        """Take blocks and time for a plan. Call before the scheduler's ``begin``.

        Raises:
            InvariantError: a preempted request holds nothing, or a planned hit is not there.
            CapacityError: the plan takes more blocks than are free.
        """
        refused = tuple([self._known.pop(request_id) for request_id in plan.refused])
        if plan.preempt or plan.recall:
            self._leave(plan)
        batch = self._take(plan)
        self._batches += 1
        step_s, online_s = self._times(plan, batch.parts, batch.online)
        seconds = self._swap.iteration_s(step_s, self._copied_out + batch.slots)
        on_cpu: tuple[RequestId, ...] = ()
        if self._lane is not None and plan.piggyback:
            tokens = sum(tokens for tokens, _, _ in batch.parts)
            seconds += self._lane.piggyback_s(tokens, plan.piggyback)
            on_cpu = self._lane.advance(plan.piggyback, plan.now_s, seconds)
            for request_id in on_cpu:  # each has a token that it did not have before
                self._known[request_id].served_tokens += 1
        return Executed(
            seconds=seconds,
            online_s=online_s,
            yields=tuple(batch.yields),
            filled=tuple(batch.filled),
            tokens=batch.tokens,
            on_cpu=on_cpu,
            refused=refused,
        )

    def _take(self, plan: StepPlan) -> _Batch:
        """Takes blocks for the plan's work, in its order, and sums the work up.

        Raises:
            InvariantError: a request's work goes beyond what it knows.
        """
        kv, known, size, number = self.kv, self._known, self.kv.block_size_tokens, self._batches
        restore = frozenset(plan.restore)
        parts: list[_Part] = []
        online: list[_Part] = []
        yields: list[RequestId] = []
        filled: list[Request] = []
        growing: list[Request] = []  # decodes whose last block is full
        slots = served = 0
        for request_id, tokens, admitted, hit_tokens, _ in plan.work:  # the hot loop of a run
            running = known[request_id]
            request = running.request
            if tokens == 1 and not admitted and request_id not in restore:  # nearly all: decodes
                computed = request.computed_tokens
                if computed % size == 0:
                    growing.append(request)
            else:
                kv.extend(growing)
                growing = []
                if request_id in restore:
                    slots += kv.restore(request)
                computed = self._allocate(request, tokens, hit_tokens if admitted else None)
            end = computed + tokens
            if tokens > 1 or end % size == 0:
                filled.append(request)
            left = request.prompt_tokens + request.output_tokens - end
            if left == 0:
                yields.append(request_id)
            elif left < 0:
                raise InvariantError(
                    f"request {request_id} knows {request.known_tokens} tokens, planned to {end}"
                )
            part = (tokens, computed, running.batch != number - 1)
            running.batch = number
            parts.append(part)
            if request.is_online:
                online.append(part)
            elif end > running.served_tokens:
                served += end - running.served_tokens
                running.served_tokens = end
        kv.extend(growing)
        return _Batch(parts, online, yields, filled, _tokens(parts, online, served), slots)

    def _allocate(self, request: Request, tokens: int, hit_tokens: int | None) -> int:
        """Blocks for more than a decode takes; answers what is computed before. None: it runs."""
        if hit_tokens is None:
            self.kv.allocate(request, new_tokens=tokens)
            return request.computed_tokens
        hit = PrefixHit(tokens=hit_tokens, free_blocks=0)
        self.kv.allocate(request, new_tokens=tokens, hit=hit)
        return hit_tokens

    def _times(
        self, plan: StepPlan, parts: list[_Part], online: list[_Part]
    ) -> tuple[float, float]:
        """Seconds of the step, and of its online part beyond an empty step."""
        if self._recorded is None:
            step_s, work_s = self._cost.timed(parts, self._rng)
        else:
            distinct = self._distinct_tokens(plan, parts)
            step_s, work_s = self._recorded.timed(parts, distinct)
        if not online:
            return step_s, 0.0
        if len(online) < len(parts):
            work_s = self._cost.work_s(online)
        return step_s, work_s - self._empty_s

    def _distinct_tokens(self, plan: StepPlan, parts: list[_Part]) -> int:
        """Computed tokens that a step reads, those of a shared prefix once."""
        requests = [self._known[work.request_id].request for work in plan.work]
        return distinct_tokens(
            [
                (request.block_hashes, computed)
                for request, (_, computed, _) in zip(requests, parts, strict=True)
            ],
            self.kv.block_size_tokens,
        )

    def _leave(self, plan: StepPlan) -> None:
        """Preemptions, and moves to and from the CPU lane; what admissions count on is kept."""
        for preemption in plan.preempt:
            request = self._known[preemption.request_id].request
            if self._lane is not None:
                self._lane.drop(request.id)  # it may have been on its way back
            if self._lane is None or not preemption.to_cpu:
                self.kv.preempt(request)
                continue
            self.kv.free(request.id)
            self._lane.take(request.id, request.known_tokens, plan.now_s)
        for work in plan.work:
            if work.admitted and work.hit_tokens:
                hit = PrefixHit(tokens=work.hit_tokens, free_blocks=0)
                self.kv.keep(self._known[work.request_id].request, hit)
        if self._lane is None:
            return
        for request_id in plan.recall:
            request = self._known[request_id].request
            self._lane.recall(request_id, plan.now_s)
            self.kv.allocate(request, new_tokens=request.known_tokens)

    def finish(self, executed: Executed, ended_s: float) -> list[Running]:
        """Cache what was computed, hand out tokens; returns the requests that ended."""
        size = self.kv.block_size_tokens
        if executed.filled:
            self.kv.commit_all(executed.filled)
        self._copied_out = self.kv.settle()
        ended = []
        known = self._known
        for request_id in executed.yields + executed.on_cpu:
            running = known[request_id]
            request, tokens_s = running.request, running.tokens_s
            tokens_s.append(ended_s)
            full = (request.prompt_tokens + request.output_tokens) // size
            hashes = request.block_hashes
            if full > len(hashes):
                hashes.extend(running.hashes[len(hashes) : full])
            if len(tokens_s) == running.output_tokens:
                self.kv.free(request_id)
                if self._lane is not None:
                    self._lane.drop(request_id)
                del self._known[request_id]
                ended.append(running)
        return ended


def _tokens(parts: list[_Part], online: list[_Part], served: int) -> StepTokens:
    """Of all parts, of which some are online's."""
    own = [tokens for tokens, _, _ in online]
    if len(online) == len(parts):
        return StepTokens(sum(own), 0, 0, 0)
    sizes = [tokens for tokens, _, _ in parts]
    return StepTokens(sum(own), sum(sizes) - sum(own), served, sizes.count(1) - own.count(1))
