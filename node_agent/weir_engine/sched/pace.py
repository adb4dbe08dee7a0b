"""When the next token of an online request is due by a cumulative TPOT objective."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from weir_engine.config import Metric, Slo
from weir_engine.request import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """A token every ``tpot_s`` from a start: a request ahead of that has slack for a long step.

    With an objective on TTFT too the start is the arrival, to which the account adds that objective
    (``from_arrival``). Without one it is the first token, however late that came: then the pace is
    the mean of a request's own gaps.

    Source: Echo §5.1, Latency_i = TTFT + i * TPOT.
    """

    tpot_s: float
    from_arrival: bool

    @classmethod
    def of(cls, slos: Sequence[Slo]) -> Self | None:
        """By the tightest objective on TPOT; None without one."""
        tpot_s = min((s.threshold_s for s in slos if s.metric is Metric.TPOT), default=None)
        if tpot_s is None:
            return None
        return cls(tpot_s=tpot_s, from_arrival=any(s.metric is Metric.TTFT for s in slos))

    def next_s(self, request: Request, now_s: float) -> float:
        """When a decoding request's next token is due; a first token in flight comes ``now_s``."""
        if self.from_arrival:
            start_s = request.arrival_s
        else:
            start_s = now_s if request.first_token_s is None else request.first_token_s
        return start_s + request.output_tokens * self.tpot_s

    def late_s(self, request: Request, now_s: float) -> float | None:
        """How late the token is that a request got at ``now_s``; None for one that starts it."""
        if self.from_arrival:
            return now_s - (request.arrival_s + request.output_tokens * self.tpot_s)
        if request.first_token_s is None:
            return None
        return now_s - (request.first_token_s + (request.output_tokens - 1) * self.tpot_s)
