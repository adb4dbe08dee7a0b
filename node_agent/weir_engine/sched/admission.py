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
from weir_engine.sched.prompt_queue import queue_s
from weir_engine.sched.tpot_budget import planned_step_s


class Admission(Protocol):
    """Turns online requests away. A refused request counts as missed."""

    def refused(
        self, running: Collection[Request], waiting: Iterable[Request], now_s: float
    ) -> frozenset[RequestId]:
        """Which of the ``waiting`` are refused beside the ``running`` ones; nothing changes."""
        ...


class TtftAdmission(StepListener):
    """Refuses a request whose wait in the queue and own prefill would exceed the TTFT objective.

    Prompts are served in order of arrival beside the running decodes, in steps as long as
    ``TpotBudget`` plans them: in steps of a whole TPOT the queue would drain more slowly than
    judged. A request is judged in the first plan after its arrival, and those refused with it are
    no longer in the queue of the next.

    Raises:
        ConfigError: no TTFT or no TPOT objective.

    Source: OmniServe §3.3.3; the sum over unfinished prefills is ``queue_s``.
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
                if self._served_s(decodes, [*queue, own]) > due_s:
                    turned_away.append(request.id)
                    continue
            queue.append(own)
        return frozenset(turned_away)

    def _served_s(self, decodes: StepShape, queue: list[tuple[int, int]]) -> float:
        limit_s = planned_step_s(self._model, self._tpot_s)
        return queue_s(self._model, decodes, queue, limit_s=limit_s, step_tokens=self._most_tokens)

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
