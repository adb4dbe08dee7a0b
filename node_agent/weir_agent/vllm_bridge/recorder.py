"""What the engine process reports: fixed-size aggregates over the last minute, and sums.

Plain types only; nothing here decides.
"""

from collections import deque
from collections.abc import Sequence

_CAPACITY = 4096


class Window:
    """Values of the last ``horizon_s`` seconds, at most 4,096 of them."""

    def __init__(self, horizon_s: float = 60.0) -> None:
        self._horizon_s = horizon_s
        self._times: deque[float] = deque(maxlen=_CAPACITY)
        self._values: deque[float] = deque(maxlen=_CAPACITY)

    def add(self, now_s: float, value: float) -> None:
        """One more value, seen at ``now_s``."""
        self._times.append(now_s)
        self._values.append(value)

    def values(self, now_s: float) -> list[float]:
        """The values still in the window, in rising order."""
        first_s = now_s - self._horizon_s
        while self._times and self._times[0] < first_s:
            self._times.popleft()
            self._values.popleft()
        return sorted(self._values)  # the engine waits meanwhile

    def summary(self, now_s: float) -> dict[str, float]:
        """``count``, ``mean_s``, ``p50_s``, ``p90_s``, ``p99_s``; zeros of nothing."""
        ordered = self.values(now_s)
        count = len(ordered)
        return {
            "count": count,
            "mean_s": sum(ordered) / count if count else 0.0,
            "p50_s": quantile(ordered, 0.5),
            "p90_s": quantile(ordered, 0.9),
            "p99_s": quantile(ordered, 0.99),
        }


class Recorder:
    """Latencies of online requests as the engine sees them, step times and their prediction."""

    def __init__(self) -> None:
        self.ttft = Window()
        self.tbt = Window()
        self.tpot = Window()
        self._steps = Window()
        self._errors = Window()
        self._bridge = Window()
        self._seconds = 0.0

    def step(self, now_s: float, *, duration_s: float, predicted_s: float, timed: bool) -> None:
        """A step ended; ``predicted_s`` 0 means that none was made."""
        self._steps.add(now_s, duration_s)
        self._seconds += duration_s
        if timed and duration_s > 0 and predicted_s > 0:
            self._errors.add(now_s, abs(duration_s - predicted_s) / duration_s)

    def bridge(self, now_s: float, spent_s: float) -> None:
        """Time that planning and bookkeeping took of one step, vLLM's own scheduling excluded."""
        self._bridge.add(now_s, spent_s)

    def report(self, now_s: float) -> dict[str, object]:
        """The aggregates."""
        steps, errors = self._steps.summary(now_s), self._errors.summary(now_s)
        bridge = self._bridge.summary(now_s)
        return {
            "ttft": self.ttft.summary(now_s),
            "tbt": self.tbt.summary(now_s),
            "tpot": self.tpot.summary(now_s),
            "step_mean_s": steps["mean_s"],
            "step_p99_s": steps["p99_s"],
            "step_seconds": self._seconds,
            "predictor_mape": errors["mean_s"],
            "bridge_mean_s": bridge["mean_s"],
            "bridge_p99_s": bridge["p99_s"],
        }


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """The value below which that fraction of ``ordered`` lies; 0.0 of nothing."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]
