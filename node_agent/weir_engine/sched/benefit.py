"""Offline selection by what a step gains a second: benefit less punishment over time.

It ranks who waits; the step takes what fits. Running requests are the last batch's and go on.
"""

from collections.abc import Mapping, Sequence

from typing_extensions import override

from weir_engine.errors import ConfigError
from weir_engine.ids import BlockHash, RequestId
from weir_engine.kv.references import ReferenceCounter
from weir_engine.kv.view import KvView
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.models import LatencyModel
from weir_engine.pool.length_buckets import LengthBuckets
from weir_engine.request import Request
from weir_engine.sched.listener import StepListener
from weir_engine.sched.plan import StepPlan

_FAMILY_MEMBERS = 4
_STALE_STEPS = 16


class BenefitSelection(StepListener):
    """Ranks candidates by (benefit - punishment) / time of the last batch with each added.

    *Benefit* is the tokens served by the step, one a token, cached ones included. *Punishment* is
    the tokens of cached blocks that some waiting request wants and that the choice would evict.
    *Time* is predicted. The last batch stands for the next one: its decodes go on. The ranking is
    made anew when a request came, went, started or ended, and every sixteen steps.

    ``step_tokens`` bounds the tokens of one step, ``block_size_tokens`` is the KV block's size.

    Source: Echo §4.1, eqs. 1, 2 and 4; the candidates are those of ``LengthBuckets``. The number of
    blocks to evict is rounded up to a power of two, so that candidates share one look-up.
    """

    def __init__(
        self, *, kv: KvView, model: LatencyModel, block_size_tokens: int, step_tokens: int
    ) -> None:
        if step_tokens < 1:
            raise ConfigError(f"step_tokens is {step_tokens}: give 1 or more")
        self._kv = kv
        self._model = model
        self._block_size = block_size_tokens
        self._step_tokens = step_tokens
        self._buckets = LengthBuckets()
        self._wanted = ReferenceCounter()
        self._batch = EMPTY_SHAPE
        self._ranked: dict[int, list[Request]] = {}  # by how many were asked for
        self._age_steps = 0

    def __len__(self) -> int:
        return len(self._buckets)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._buckets

    def add(self, request: Request) -> None:
        """A request waits from now on."""
        self._buckets.add(request)
        self._wanted.add(request.id, request.block_hashes)
        self._ranked.clear()

    def remove(self, request_id: RequestId) -> None:
        """It waits no more: it ended before it ran."""
        self._leave(request_id, runs=False)

    def taken(self, request_id: RequestId) -> None:
        """It was admitted."""
        self._leave(request_id, runs=True)

    def candidates(self, limit: int, now_s: float) -> Sequence[Request]:  # noqa: ARG002
        """The best ``limit``, best first; nothing changes that another call would notice."""
        if limit not in self._ranked:
            heads = self._buckets.heads(
                limit, near_tokens=self._batch.decode_longest, each=_FAMILY_MEMBERS
            )
            useful: dict[frozenset[BlockHash], int] = {}
            scored = [(-self._score(request, useful), at) for at, request in enumerate(heads)]
            self._ranked[limit] = [heads[at] for _, at in sorted(scored)]
        return self._ranked[limit]

    def score(self, request: Request) -> float:
        """(Benefit - punishment) / time of the last batch with the request, in tokens a second."""
        return self._score(request, {})

    def _score(self, request: Request, useful: dict[frozenset[BlockHash], int]) -> float:
        """``useful`` keeps, for this ranking, how many hashes of a set some request wants."""
        hit = self._kv.hit(request)
        new_tokens = min(request.known_tokens - hit.tokens, self._step_tokens)
        benefit = self._batch.decode_requests + hit.tokens + new_tokens
        hit_blocks = hit.tokens // self._block_size
        fresh = -(-request.known_tokens // self._block_size) - hit_blocks
        evicted = self._kv.next_evicted(1 << (fresh - 1).bit_length())
        own = evicted.intersection(request.block_hashes[:hit_blocks])
        if evicted not in useful:
            useful[evicted] = self._wanted.among(evicted)
        lost = useful[evicted] - self._wanted.among(own)
        seconds = self._model.predict(self._batch.with_prefill(new_tokens, hit.tokens))
        return (benefit - lost * self._block_size) / seconds

    @override
    def on_begin(self, plan: StepPlan, requests: Mapping[RequestId, Request]) -> None:
        """Remembers the batch; an admission, a preemption or age makes the ranking stale."""
        shape = plan.shape
        self._batch = StepShape(
            decode_requests=shape.decode_requests,
            decode_context=shape.decode_context,
            decode_longest=shape.decode_longest,
        )
        self._age_steps += 1
        changed = plan.preempt or any(work.admitted for work in plan.work)
        if changed or self._age_steps >= _STALE_STEPS:
            self._ranked.clear()
            self._age_steps = 0

    @override
    def on_end(self, request: Request) -> None:
        """Blocks came free."""
        self._ranked.clear()

    def _leave(self, request_id: RequestId, *, runs: bool) -> None:
        self._buckets.remove(request_id, runs=runs)
        self._wanted.remove(request_id)
        self._ranked.clear()
