"""How long an online request's next token may still take, and in which order that puts them."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge

from weir_engine.config import Metric, Slo
from weir_engine.errors import ConfigError
from weir_engine.request import Request

_WEIGHT = 0.1  # of the newest step in the moving average


class RemainingTime:
    """Time left to each online request's next deadline: TTFT from arrival, then TPOT a token.

    ``step_tokens`` bounds the tokens of a step: a longer prompt takes several steps to its token.

    Raises:
        ConfigError: no TTFT or no TPOT objective.

    Source: BROS §4.2, Algorithm 1 line 3: SLO - t_i - (k_i - 1) * T_avg, t_i the time since the
    last token (since arrival before the first), k_i the steps to the next token, T_avg the moving
    average of the steps' durations. The paper leaves its average open: this one is exponential.
    """

    def __init__(self, slos: Sequence[Slo], *, step_tokens: int) -> None:
        ttft_s = min((s.threshold_s for s in slos if s.metric is Metric.TTFT), default=None)
        tpot_s = min((s.threshold_s for s in slos if s.metric is Metric.TPOT), default=None)
        if ttft_s is None or tpot_s is None:
            raise ConfigError("slos lack ttft or tpot: remaining time needs one of each")
        self._ttft_s = ttft_s
        self._tpot_s = tpot_s
        self._step_tokens = step_tokens
        self.average_s = 0.0

    def of(self, request: Request, now_s: float) -> float:
        """Seconds left to the next token; negative when it is late."""
        steps = -(-request.remaining_tokens // self._step_tokens)
        # A token that is in flight comes with the step that runs: the next one counts from now.
        if request.output_tokens == 0:
            left_s = request.arrival_s + self._ttft_s - now_s
        else:
            last_s = now_s if request.last_token_s is None else request.last_token_s
            left_s = last_s + self._tpot_s - now_s
        return left_s - max(steps - 1, 0) * self.average_s

    def on_step(self, duration_s: float) -> None:
        """A step ended: it enters the moving average."""
        if self.average_s == 0.0:
            self.average_s = duration_s
        self.average_s += _WEIGHT * (duration_s - self.average_s)

    def poll(
        self, pending: Iterable[Request], waiting: Iterable[Request], now_s: float
    ) -> Iterator[tuple[float, Request]]:
        """(Time left, request), the most urgent first; ``waiting`` comes in order of arrival.

        Only ``pending`` is sorted, and a queue is read no further than it is asked for.

        Source: BROS §4.2, request pulling by queue polling (Fig. 8). Requests of one arrival go by
        their order in the queue.
        """

        def entry(request: Request) -> tuple[float, Request]:
            return self.of(request, now_s), request

        return merge(sorted(map(entry, pending), key=_key), map(entry, waiting), key=_key)


def _key(entry: tuple[float, Request]) -> float:
    return entry[0]
