"""When the next token of an online request is due by a cumulative TPOT objective."""

from collections.abc import Sequence
from typing import Self

from weir_engine.config import Metric, Slo
from weir_engine.request import Request


class Pace:
    """A token every ``tpot_s`` from a start: a request ahead of that has slack for a long step.

    The start is the first token, however late that came: the pace is the mean of a request's own
    gaps, which TPOT is. For an objective as Echo's it is the arrival, to which the account adds
    the objective on TTFT (``from_arrival``).

    Source: Echo §5.1, Latency_i = TTFT + i * TPOT.
    """

    def __init__(self, *, tpot_s: float, from_arrival: bool) -> None:
        self._threshold_s = tpot_s
        self._from_arrival = from_arrival
        self.tpot_s = tpot_s

    @classmethod
    def of(cls, slos: Sequence[Slo], *, from_arrival: bool) -> Self | None:
        """By the tightest objective on TPOT; None without one."""
        tpot_s = min((s.threshold_s for s in slos if s.metric is Metric.TPOT), default=None)
        return None if tpot_s is None else cls(tpot_s=tpot_s, from_arrival=from_arrival)

    def next_s(self, request: Request, starts_s: float) -> float:
        """When the token of a step that ``starts_s`` is due for a decoding request.

        The first token of a request that has none yet comes out as the step starts.
        """
        if self._from_arrival:
            start_s = request.arrival_s
        else:
            start_s = starts_s if request.first_token_s is None else request.first_token_s
        return start_s + request.output_tokens * self.tpot_s

    def late_s(self, request: Request, now_s: float) -> float | None:
        """How late the token is that a request got at ``now_s``; None for one that starts it.

        ``request.delivered_tokens`` count that token: those in flight behind it do not matter.
        """
        gaps_s = (request.delivered_tokens - 1) * self.tpot_s
        if self._from_arrival:
            return now_s - (request.arrival_s + gaps_s)
        if request.first_token_s is None:
            return None
        return now_s - (request.first_token_s + gaps_s)

    def set_client_delay(self, delay_s: float) -> None:
        """Time between engine and client that TPOT has besides; lowers it, to no less than half."""
        self.tpot_s = self._threshold_s - min(max(delay_s, 0.0), self._threshold_s / 2)


def earliest(
    decoding: Sequence[Request], pace: Pace | None, now_s: float, busy_s: float
) -> tuple[float | None, float | None]:
    """When the one that waits longest got its last token, and the next one is due by the pace.

    Both None without any that decodes, the second without a pace. Where the first token is still
    in flight the wait starts now.
    """
    tokens_s = [now_s if (last := r.last_token_s) is None else last for r in decoding]
    due_s = None
    if pace is not None and decoding:
        due_s = min(pace.next_s(r, now_s + busy_s) for r in decoding)
    return min(tokens_s, default=None), due_s
