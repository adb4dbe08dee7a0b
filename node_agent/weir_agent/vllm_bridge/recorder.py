"""What the engine process reports: fixed-size aggregates over the last minute, and sums.

Plain types only; nothing here decides.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from weir_agent.latency import COMPARED_VALUES, WINDOW_S

_MOST_STEPS = 4096


class Window:
    """Values of the last ``horizon_s`` seconds, at most the newest 4,096 of them.

    The agent compares them with as many that it saw itself.
    """

    def __init__(self, horizon_s: float = WINDOW_S) -> None:
        self._horizon_s = horizon_s
        self._times: deque[float] = deque(maxlen=COMPARED_VALUES)
        self._values: deque[float] = deque(maxlen=COMPARED_VALUES)

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
        return {
            "count": len(ordered),
            "mean_s": mean(ordered),
            "p50_s": quantile(ordered, 0.5),
            "p90_s": quantile(ordered, 0.9),
            "p99_s": quantile(ordered, 0.99),
        }


class _Step(NamedTuple):
    """A step that ended; ``error`` is relative, None where it says nothing."""

    ended_s: float
    duration_s: float
    error: float | None
    bridge_s: float


class Recorder:
    """Latencies of online requests that stream, as the engine sees them; steps and predictions."""

    def __init__(self) -> None:
        self.ttft = Window()
        self.tbt = Window()
        self.tpot = Window()
        self._steps: deque[_Step] = deque(maxlen=_MOST_STEPS)
        self._seconds = 0.0

    def step(
        self, now_s: float, *, duration_s: float, predicted_s: float, timed: bool, bridge_s: float
    ) -> None:
        """A step ended; ``predicted_s`` 0 means that none was made.

        ``bridge_s`` went into planning and bookkeeping for it, vLLM's own scheduling excluded.
        """
        error = None
        if timed and duration_s > 0 and predicted_s > 0:
            error = abs(duration_s - predicted_s) / duration_s
        self._steps.append(_Step(now_s, duration_s, error, bridge_s))
        self._seconds += duration_s

    def report(self, now_s: float) -> dict[str, object]:
        """The aggregates."""
        steps = self._steps
        while steps and steps[0].ended_s < now_s - WINDOW_S:
            steps.popleft()
        durations = sorted([step.duration_s for step in steps])
        bridge = sorted([step.bridge_s for step in steps])
        return {
            "ttft": self.ttft.summary(now_s),
            "tbt": self.tbt.summary(now_s),
            "tpot": self.tpot.summary(now_s),
            "step_mean_s": mean(durations),
            "step_p99_s": quantile(durations, 0.99),
            "step_seconds": self._seconds,
            "predictor_mape": mean([step.error for step in steps if step.error is not None]),
            "bridge_mean_s": mean(bridge),
            "bridge_p99_s": quantile(bridge, 0.99),
        }


def mean(values: Sequence[float]) -> float:
    """The mean; 0.0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """The value below which that fraction of ``ordered`` lies; 0.0 of nothing."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]
