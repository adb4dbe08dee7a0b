"""Which prompts go first where a percentile of TTFT counts: as few as possible are late."""

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from math import inf

from weir_engine.ids import RequestId
from weir_engine.request import Request
from weir_engine.sched.listener import StepListener

# A prompt that has waited for so many thresholds is put off no more: a percentile says nothing of
# how late the late ones are, but nobody waits for ever.
_LONGEST_WAIT = 2.0
# The percentile is taken to be one over so long. Where it leaves fewer than so many requests of
# that time to be late, it is that of the slowest, and who is put off becomes the slowest: then
# nobody is while nobody would be late by more than this share of the threshold.
_JUDGED_OVER_S = 60.0
_LEAST_SEEN_S = 10.0
_FEWEST_LEFT = 2.0
_LATE_BY = 0.25


class FewestLate(StepListener):
    """Orders prompts so that the fewest get their first token after ``threshold_s``.

    First come, first served, as long as all are in time. Where one would be late, the longest of
    those before it, or itself, is put off to the end: a burst makes one long prompt late instead of
    all that came after it. Where so few requests come that ``quantile`` of them are all but one, no
    one is put off for what is only a little late: by arrival the longest wait is the shortest.
    Requests that have had a first token (they were preempted) and prompts that have waited for two
    thresholds go before all others.

    Source: Moore 1968, "An n job, one machine sequencing algorithm for minimizing the number of
    late jobs", asked again at every step with what is left of the prompts.
    """

    def __init__(self, threshold_s: float, *, quantile: float) -> None:
        self._threshold_s = threshold_s
        self._quantile = quantile
        self._delay_s = 0.0
        self._arrivals_s: deque[float] = deque()
        self._first_s: float | None = None

    def set_client_delay(self, delay_s: float) -> None:
        """Time measured between engine and client; the threshold is lowered by it, to a half."""
        self._delay_s = min(max(delay_s, 0.0), self._threshold_s / 2)

    def on_add(self, request: Request) -> None:
        """Counts online requests."""
        if request.is_online:
            if self._first_s is None:
                self._first_s = request.arrival_s
            self._arrivals_s.append(request.arrival_s)
            self._forget(request.arrival_s)

    def order(
        self,
        requests: Iterable[Request],
        now_s: float,
        token_s: float,
        tokens_left: Callable[[Request], int],
    ) -> list[Request]:
        """The one to serve first at the front; each of its ``tokens_left`` takes ``token_s``."""
        arrived = sorted(requests, key=lambda request: (request.arrival_s, request.id))
        threshold_s = self._threshold_s - self._delay_s
        if _all_in_time(arrived, now_s, self._longest_s(now_s, threshold_s), token_s):
            return arrived
        first: list[Request] = []
        others: list[Request] = []
        for request in arrived:
            waited_s = now_s - request.arrival_s
            urgent = request.output_tokens > 0 or waited_s > _LONGEST_WAIT * threshold_s
            (first if urgent else others).append(request)
        last_due_s = max((request.arrival_s for request in others), default=-inf) + threshold_s
        time_s = now_s
        for request in first:  # in an overload they are thousands, and the first few decide
            time_s += token_s * tokens_left(request)
            if time_s > last_due_s:
                return [*first, *others]
        late: set[RequestId] = set()
        taken: list[tuple[int, RequestId]] = []  # the longest first
        for request in others:
            due_s = request.arrival_s + threshold_s
            if now_s > due_s or now_s + token_s * (tokens := tokens_left(request)) > due_s:
                late.add(request.id)  # even as the only one
                continue
            heappush(taken, (-tokens, request.id))
            time_s += token_s * tokens
            if time_s > due_s:
                less, put_off = heappop(taken)
                time_s += token_s * less
                late.add(put_off)
        in_time = [request for request in others if request.id not in late]
        return [*first, *in_time, *(request for request in others if request.id in late)]

    def _longest_s(self, now_s: float, threshold_s: float) -> float:
        """The time to first token for which nobody is put off."""
        self._forget(now_s)
        seen_s = 0.0 if self._first_s is None else now_s - self._first_s
        seen_s = min(max(seen_s, _LEAST_SEEN_S), _JUDGED_OVER_S)
        left = (1 - self._quantile) * len(self._arrivals_s) * _JUDGED_OVER_S / seen_s
        return threshold_s if left >= _FEWEST_LEFT else (1 + _LATE_BY) * threshold_s

    def _forget(self, now_s: float) -> None:
        while self._arrivals_s and self._arrivals_s[0] < now_s - _JUDGED_OVER_S:
            self._arrivals_s.popleft()


def _all_in_time(arrived: list[Request], now_s: float, longest_s: float, token_s: float) -> bool:
    """True where none takes longer, even if nothing of them is found in the prefix cache."""
    time_s = now_s
    for request in arrived:
        time_s += token_s * request.remaining_tokens
        if time_s > request.arrival_s + longest_s:
            return False
    return True
