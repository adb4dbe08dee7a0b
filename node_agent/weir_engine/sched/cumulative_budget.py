"""The step budget from cumulative deadlines: every online token is due at TTFT + i * TPOT."""

from collections.abc import Sequence
from math import inf

from weir_engine.config import Metric, Slo
from weir_engine.errors import ConfigError
from weir_engine.sched.account import Account, OnlineLoad, StepLimit


class CumulativeBudget:
    """The step ends before the next token of any online request is due.

    Token i of a request is due at arrival + TTFT + i * TPOT; the step may take the least of what is
    left, with no margin. Without online requests nothing bounds it but the engine.

    Raises:
        ConfigError: no TTFT or no TPOT objective.

    Source: Echo §5.1, SLO_r = Latency_i - WaitingTime, SLO = min over requests. Deviation: online
    prefill always gets one TPOT, however late a decoder is, or prompts would starve behind it.
    """

    def __init__(self, slos: Sequence[Slo]) -> None:
        ttft_s = min((s.threshold_s for s in slos if s.metric is Metric.TTFT), default=None)
        tpot_s = min((s.threshold_s for s in slos if s.metric is Metric.TPOT), default=None)
        if ttft_s is None or tpot_s is None:
            raise ConfigError("slos lack ttft or tpot: a cumulative budget needs one of each")
        self._ttft_s = ttft_s
        self._tpot_s = tpot_s

    def prefill_limit(self, load: OnlineLoad) -> float:
        """What the decoders leave, at least one TPOT."""
        if load.earliest_cumulative_s is None:
            return inf
        return max(self._slack_s(load.earliest_cumulative_s, load), self._tpot_s)

    def step_limit(self, load: OnlineLoad) -> StepLimit:
        """The least that is left to any online request."""
        starts_s = [load.earliest_cumulative_s, load.earliest_arrival_s]
        slacks_s = [self._slack_s(start_s, load) for start_s in starts_s if start_s is not None]
        return StepLimit(seconds=min(slacks_s, default=inf), reason="cumulative")

    @property
    def accounts(self) -> Sequence[Account]:
        """None: it does not learn."""
        return ()

    def _slack_s(self, start_s: float, load: OnlineLoad) -> float:
        return start_s + self._ttft_s - load.now_s - load.busy_s
