"""What Weir is compared with in virtual time: stock scheduling rules and a gateway's concurrency.

Modelled on rules, not on code; the comparison on real engines is the one that counts.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weir_engine.config import EngineShape, Slo
from weir_engine.errors import ConfigError
from weir_engine.ids import RequestId
from weir_engine.kv.manager import KvManager
from weir_engine.kv.view import PrefixHit
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.request import Request, RequestState
from weir_engine.sched.plan import Preemption, StepOutcome, StepPlan, Work
from weir_engine.sim.records import RequestRecord
from weir_engine.sim.report import Latencies, attained
from weir_engine.sim.workload import RequestSpec


class StockDraft:
    """Sums of a step under construction."""

    def __init__(self, shape: EngineShape, kv: KvManager, step_tokens: int, running: int) -> None:
        self._block_size = shape.block_size_tokens
        self.tokens_left = min(step_tokens, shape.max_batched_tokens)
        self.seqs_left = shape.max_seqs - running
        self.blocks_left = kv.free_blocks
        self.allocated = 0
        self.taken: dict[RequestId, tuple[Work, int]] = {}
        self.preempted: list[RequestId] = []

    def blocks_for(self, computed_tokens: int, new_tokens: int) -> int:
        """Blocks that so many more tokens take."""
        size = self._block_size
        return -(-(computed_tokens + new_tokens) // size) - -(-computed_tokens // size)

    def has_room(self, blocks: int) -> bool:
        """True while a token, a slot and the blocks are left."""
        return self.tokens_left >= 1 and self.seqs_left >= 1 and blocks <= self.blocks_left

    def take(self, work: Work, blocks: int) -> None:
        """Put a request into the step."""
        self.taken[work.request_id] = (work, blocks)
        self.tokens_left -= work.tokens
        self.blocks_left -= blocks
        self.allocated += blocks

    def drop(self, request_id: RequestId, held_blocks: int) -> None:
        """Preempt one; its place in the step, if any, is free again."""
        work, blocks = self.taken.pop(request_id, (None, 0))
        self.tokens_left += work.tokens if work else 0
        self.preempted.append(request_id)
        self.blocks_left += held_blocks + blocks
        self.seqs_left += 1


class StockScheduler:
    """Priority scheduling under a static number of tokens a step, as vLLM does it.

    Running requests go first in their order, then waiting ones by class and arrival (those of one
    moment in the order given) while tokens, blocks and slots last. A running request that finds no
    block preempts the last of the lowest class. ``fixed`` adds what stock lacks: an online request
    that waits preempts offline ones. ``by_class`` False is first come, first served.
    ``step_tokens`` may be changed between steps.
    """

    def __init__(
        self,
        shape: EngineShape,
        kv: KvManager,
        *,
        step_tokens: int,
        fixed: bool = False,
        by_class: bool = True,
    ) -> None:
        self._shape = shape
        self._kv = kv
        self.step_tokens = step_tokens
        self._fixed = fixed
        self._by_class = by_class
        self._requests: dict[RequestId, Request] = {}
        self._running: dict[RequestId, Request] = {}
        self._waiting: list[Request] = []  # by rank, which no event changes
        self._added = 0
        self._places: dict[RequestId, int] = {}  # in the order of arrival
        self._step = 0

    def add(self, request: Request) -> None:
        """A request arrives."""
        self._requests[request.id] = request
        self._added += 1
        self._places[request.id] = self._added
        insort(self._waiting, request, key=self._rank)

    def plan(self, now_s: float) -> StepPlan:
        """Decide the next step; changes nothing."""
        draft = StockDraft(self._shape, self._kv, self.step_tokens, len(self._running))
        self._fill(draft)
        return StepPlan(
            step=self._step + 1,
            now_s=now_s,
            work=tuple(work for work, _ in draft.taken.values()),
            preempt=tuple(
                Preemption(request_id=request_id, reason="needs-room")
                for request_id in draft.preempted
            ),
            shape=StepShape(prefill_requests=len(draft.taken)),
            online_shape=EMPTY_SHAPE,
            predicted_s=1e-9,
            limit_reason="tokens",
        )

    def begin(self, plan: StepPlan) -> None:
        """The plan was sent to the engine."""
        self._step = plan.step
        for preemption in plan.preempt:
            request = self._running.pop(preemption.request_id)
            request.move(RequestState.PREEMPTED)
            request.preemptions += 1
            request.computed_tokens = 0
            insort(self._waiting, request, key=self._rank)
        for work in plan.work:
            request = self._requests[work.request_id]
            if work.admitted:
                if request.preemptions == 0:
                    request.hit_tokens = work.hit_tokens
                request.move(RequestState.RUNNING)
                request.computed_tokens = work.hit_tokens
                del self._waiting[bisect_left(self._waiting, self._rank(request), key=self._rank)]
                self._running[request.id] = request
            request.computed_tokens += work.tokens
            if request.computed_tokens == request.known_tokens:
                request.output_tokens += 1

    def commit(self, plan: StepPlan, outcome: StepOutcome) -> None:  # noqa: ARG002
        """The step ended."""
        for request_id in outcome.finished:
            request = self._requests.pop(request_id)
            del self._running[request_id], self._places[request_id]
            request.move(RequestState.FINISHED)

    def _fill(self, draft: StockDraft) -> None:
        """Who is in the step."""
        for request in list(self._running.values()):
            if request.id not in draft.preempted:
                self._continue(draft, request)
        # Under stock rules a preemption ends admission for the step.
        if not draft.preempted:
            for request in self._waiting:
                if not self._admit(draft, request):
                    break

    def _rank(self, request: Request) -> tuple[int, float, int]:
        klass = int(request.klass) if self._by_class else 0
        return (klass, request.arrival_s, self._places[request.id])

    def _continue(self, draft: StockDraft, request: Request) -> None:
        tokens = min(request.remaining_tokens, draft.tokens_left)
        if tokens < 1:
            return
        blocks = draft.blocks_for(request.computed_tokens, tokens)
        while blocks > draft.blocks_left:
            others = [r for r in self._running.values() if r.id not in draft.preempted]
            last = max(others, key=self._rank)
            draft.drop(last.id, self._kv.releasable_blocks([last.id]))
            if last is request:
                return
        draft.take(Work(request_id=request.id, tokens=tokens), blocks)

    def _admit(self, draft: StockDraft, request: Request) -> bool:
        hit = self._hit(draft, request)
        whole = draft.blocks_for(hit.tokens, request.known_tokens - hit.tokens) + hit.free_blocks
        if not draft.has_room(whole):
            if not (self._fixed and request.is_online and self._make_room(draft, whole)):
                return False
            hit = self._hit(draft, request)
        tokens = min(request.known_tokens - hit.tokens, draft.tokens_left)
        blocks = draft.blocks_for(hit.tokens, tokens) + hit.free_blocks
        work = Work(request_id=request.id, tokens=tokens, admitted=True, hit_tokens=hit.tokens)
        draft.take(work, blocks)
        draft.seqs_left -= 1
        return True

    def _hit(self, draft: StockDraft, request: Request) -> PrefixHit:
        """The hit that is left when what the step took so far has evicted its share."""
        hit = self._kv.hit(request)
        if draft.allocated > self._kv.free_blocks:  # blocks freed in this step are taken as well
            return PrefixHit(tokens=0, free_blocks=0)
        found = hit.tokens // self._shape.block_size_tokens
        evicted = self._kv.next_evicted(draft.allocated)
        kept = 0
        while kept < found and request.block_hashes[kept] not in evicted:
            kept += 1
        return PrefixHit(
            tokens=kept * self._shape.block_size_tokens,
            free_blocks=max(0, hit.free_blocks - (found - kept)),
        )

    def _make_room(self, draft: StockDraft, blocks: int) -> bool:
        offline = [
            r for r in self._running.values() if not r.is_online and r.id not in draft.preempted
        ]
        for victim in sorted(offline, key=self._rank, reverse=True):
            draft.drop(victim.id, self._kv.releasable_blocks([victim.id]))
            if draft.has_room(blocks):
                return True
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class AimdSettings:
    """How a gateway changes its concurrency: once an ``interval_s``, up by one or down by half.

    It judges requests that ended in the last ``window_s``, each once where that is None, and wants
    ``spare``, a share of the threshold, to be left.
    """

    interval_s: float = 5.0
    most: int = 64
    step: float = 1.0
    factor: float = 0.5
    window_s: float | None = None
    spare: float = 0.0


GATEWAYS = (AimdSettings(), AimdSettings(interval_s=0.5, window_s=10.0, spare=0.05))
"""A slow one and a quick one, as in the live co-location benchmark: neither is the better of the
two everywhere, so where AIMD is compared with, both are tried."""


class AimdWindow:
    """A gateway that keeps offline concurrency where online latency seems to hold.

    It sees online requests when they end; none to judge counts as good.
    """

    def __init__(
        self, specs: tuple[RequestSpec, ...], *, slos: Sequence[Slo], settings: AimdSettings
    ) -> None:
        if not slos:
            raise ConfigError("aimd needs at least one SLO to watch")
        self._rest: Iterator[RequestSpec] = iter(specs)
        self._slos = slos
        self._settings = settings
        self._level = 1.0
        self._next_s = settings.interval_s
        self._now_s = 0.0
        self._seen: list[tuple[float, RequestRecord]] = []  # with when it was seen

    def take(self, *, now_s: float, unfinished: int) -> list[RequestSpec]:
        """Up to the present concurrency."""
        self._now_s = now_s
        if now_s >= self._next_s:
            self._adapt()
            self._next_s = now_s + self._settings.interval_s
        missing = int(self._level) - unfinished
        return [spec for _, spec in zip(range(missing), self._rest, strict=False)]

    def online_ended(self, record: RequestRecord) -> None:
        """An online request ended: its latencies are known now."""
        self._seen.append((self._now_s, record))

    def _adapt(self) -> None:
        window_s = self._settings.window_s
        if window_s is not None:
            self._seen = [each for each in self._seen if each[0] >= self._now_s - window_s]
        if self._good():
            self._level = min(self._level + self._settings.step, self._settings.most)
        else:
            self._level = max(self._level * self._settings.factor, 0.0)
        if window_s is None:
            self._seen.clear()

    def _good(self) -> bool:
        latencies = Latencies.of(record for _, record in self._seen)
        if not (latencies.ttft_s and latencies.tbt_s and latencies.tpot_s):
            return True
        return attained(latencies, self._slos) <= 1.0 - self._settings.spare
