"""Whether an online request is taken in at all, decided once, when it arrives."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Protocol

from typing_extensions import override

from weir_engine.config import Metric, Slo
from weir_engine.errors import ConfigError
from weir_engine.ids import RequestId
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.models import LatencyModel
from weir_engine.request import Request
from weir_engine.sched.listener import StepListener
from weir_engine.sched.plan import StepPlan

_MEDIAN = 0.5


class Admission(Protocol):
    """Turns online requests away. A refused request counts as missed."""

    def refused(
        self, running: Collection[Request], waiting: Iterable[Request], now_s: float
    ) -> frozenset[RequestId]:
        """Which of the ``waiting`` are refused beside the ``running`` ones; nothing changes."""
        ...


class TtftAdmission(StepListener):
    """Refuses a request whose wait in the queue and own prefill would exceed the TTFT objective.

    Prompts are served in order of arrival in steps of one TPOT beside the running decodes; a
    request is judged in the first plan after its arrival, and those refused with it are no longer
    in the queue of the next.

    Raises:
        ConfigError: no TTFT or no TPOT objective.

    Source: OmniServe §3.3.3. The printed sum is over layers and modules of all unfinished prefills;
    here the model predicts it as whole steps: as many as the queue fills, and what is left over.
    """

    def __init__(
        self, slos: Sequence[Slo], model: LatencyModel, *, max_batched_tokens: int
    ) -> None:
        ttft_s = min((s.threshold_s for s in slos if s.metric is Metric.TTFT), default=inf)
        tpot_s = min((s.threshold_s for s in slos if s.metric is Metric.TPOT), default=inf)
        if inf in {ttft_s, tpot_s}:
            raise ConfigError("slos lack ttft or tpot: admission by TTFT needs one of each")
        self._ttft_s = ttft_s
        self._tpot_s = tpot_s
        self._model = model
        self._most_tokens = max_batched_tokens
        self._unjudged: dict[RequestId, float] = {}

    def refused(
        self, running: Collection[Request], waiting: Iterable[Request], now_s: float
    ) -> frozenset[RequestId]:
        """Those that arrived since the last plan and cannot be served in time."""
        if not self._unjudged:
            return frozenset()
        decodes = EMPTY_SHAPE
        queue: list[tuple[int, int]] = []
        for request in running:
            if request.is_decoding:
                decodes = decodes.with_decode(request.computed_tokens + 1)
            else:
                queue.append((request.remaining_tokens, request.computed_tokens))
        turned_away = []
        for request in sorted(waiting, key=lambda request: (request.arrival_s, request.id)):
            own = (request.remaining_tokens, request.computed_tokens)
            if request.id in self._unjudged:
                due_s = request.arrival_s + self._ttft_s - now_s
                if self.prefill_s(decodes, [*queue, own]) > due_s:
                    turned_away.append(request.id)
                    continue
            queue.append(own)
        return frozenset(turned_away)

    def prefill_s(self, decodes: StepShape, queue: Iterable[tuple[int, int]]) -> float:
        """Seconds until the last of ``queue``, (new, computed) tokens each, has its first token."""
        tokens = 0
        pairs = 0.0
        for new, computed in queue:
            tokens += new
            pairs += new * (computed + new / 2)
        each = max(pairs / tokens - tokens / 2, 0.0) if tokens else 0.0
        fill = self._model.max_prefill_tokens(
            decodes, round(each), self._tpot_s, _MEDIAN, min(tokens, self._most_tokens)
        )
        fill = max(fill, 1)
        steps, rest = divmod(tokens, fill)
        # Attention work is spread evenly over the steps.
        share = pairs / tokens if tokens else 0.0
        seconds = steps * self._model.predict(_beside(decodes, fill, share))
        return seconds + (self._model.predict(_beside(decodes, rest, share)) if rest else 0.0)

    @override
    def on_add(self, request: Request) -> None:
        """An online request is judged in the next plan."""
        if request.is_online:
            self._unjudged[request.id] = request.arrival_s

    @override
    def on_begin(self, plan: StepPlan, requests: Mapping[RequestId, Request]) -> None:
        """What had arrived when the plan was made is judged."""
        self._unjudged = {
            name: arrival_s for name, arrival_s in self._unjudged.items() if arrival_s > plan.now_s
        }


def _beside(decodes: StepShape, tokens: int, pairs_each: float) -> StepShape:
    return StepShape(
        tokens,
        tokens * pairs_each,
        1,
        decodes.decode_requests,
        decodes.decode_context,
        decodes.decode_longest,
    )
