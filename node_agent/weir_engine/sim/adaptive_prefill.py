"""A baseline: stock scheduling whose tokens a step follow the measured online latency."""

from collections.abc import Sequence
from dataclasses import dataclass

from weir_engine.config import EngineShape, Metric, Slo
from weir_engine.errors import ConfigError
from weir_engine.ids import RequestId
from weir_engine.kv.manager import KvManager
from weir_engine.request import Request
from weir_engine.sched.plan import StepOutcome, StepPlan
from weir_engine.sim.baselines import StockScheduler
from weir_engine.sim.report import Latencies, attained


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveSettings:
    """Once an ``interval_s`` ``step`` tokens more, or ``factor`` of them, ``least`` to ``most``."""

    interval_s: float = 2.0
    least: int = 64
    most: int = 2048
    step: int = 64
    factor: float = 0.5


class AdaptivePrefill:
    """Fixed priority with a prefill budget that grows while online latency holds.

    TTFT and TBT of the last interval are judged on every objective that is about them; TPOT is
    judged on the same gaps as TBT.
    """

    def __init__(
        self, shape: EngineShape, kv: KvManager, *, slos: Sequence[Slo], settings: AdaptiveSettings
    ) -> None:
        if not slos:
            raise ConfigError("adaptive prefill needs at least one SLO to watch")
        self._inner = StockScheduler(shape, kv, step_tokens=settings.least, fixed=True)
        self._slos = slos
        self._settings = settings
        self._next_s = settings.interval_s
        self._online: dict[RequestId, tuple[float, float | None]] = {}  # arrival, last token
        self._ttft_s: list[float] = []
        self._tbt_s: list[float] = []

    @property
    def step_tokens(self) -> int:
        """The present budget."""
        return self._inner.step_tokens

    def add(self, request: Request) -> None:
        """A request arrives."""
        if request.is_online:
            self._online[request.id] = (request.arrival_s, None)
        self._inner.add(request)

    def plan(self, now_s: float) -> StepPlan:
        """Decide the next step; changes nothing."""
        return self._inner.plan(now_s)

    def begin(self, plan: StepPlan) -> None:
        """The plan was sent to the engine."""
        self._inner.begin(plan)

    def commit(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """The step ended: latencies are measured, and the budget follows them."""
        self._inner.commit(plan, outcome)
        for request_id in outcome.tokens.keys() & self._online.keys():
            arrival_s, last_s = self._online[request_id]
            if last_s is None:
                self._ttft_s.append(outcome.ended_s - arrival_s)
            else:
                self._tbt_s.append(outcome.ended_s - last_s)
            self._online[request_id] = (arrival_s, outcome.ended_s)
        for request_id in outcome.finished:
            self._online.pop(request_id, None)
        if outcome.ended_s >= self._next_s:
            self._next_s = outcome.ended_s + self._settings.interval_s
            self._adapt()

    def _adapt(self) -> None:
        settings, tokens = self._settings, self._inner.step_tokens
        changed = tokens + settings.step if self._good() else int(tokens * settings.factor)
        self._inner.step_tokens = min(max(changed, settings.least), settings.most)
        self._ttft_s.clear()
        self._tbt_s.clear()

    def _good(self) -> bool:
        ttft_s, tbt_s = tuple(self._ttft_s), tuple(self._tbt_s)
        latencies = Latencies(ttft_s=ttft_s, tbt_s=tbt_s, tpot_s=tbt_s)
        known = {Metric.TTFT: ttft_s, Metric.TBT: tbt_s, Metric.TPOT: tbt_s}
        slos = [slo for slo in self._slos if known[slo.metric]]
        return not slos or attained(latencies, slos) <= 1.0
