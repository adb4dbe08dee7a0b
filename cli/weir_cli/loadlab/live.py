"""Online latency as it is seen while requests still run: for live views and for AIMD."""

from __future__ import annotations

from collections import deque

from weir_cli.loadlab.records import LatencyStats, latency_stats
from weir_cli.loadlab.streaming import Observer


class SlidingSamples:
    """Samples of the last ``window_s`` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, at_s: float, value: float) -> None:
        """A sample taken at ``at_s``."""
        self._samples.append((at_s, value))

    def values(self, now_s: float) -> list[float]:
        """What was taken since ``now_s`` less the window."""
        while self._samples and self._samples[0][0] < now_s - self._window_s:
            self._samples.popleft()
        return [value for _, value in self._samples]


class LiveLatency:
    """TTFT and TBT of the last ``window_s`` seconds, fed by ``watch`` as tokens arrive."""

    def __init__(self, window_s: float = 10.0) -> None:
        self._ttft = SlidingSamples(window_s)
        self._tbt = SlidingSamples(window_s)
        self._due_s: dict[str, float] = {}

    def watch(self, name: str, due_s: float) -> Observer:
        """The observer of one request; without tokens it hears that no more come."""
        last_s: float | None = None
        self._due_s[name] = due_s

        def observe(at_s: float, tokens: int) -> None:
            nonlocal last_s
            self._due_s.pop(name, None)  # it has its first token, or gets none
            if tokens == 0:
                return
            if last_s is None:
                self._ttft.add(at_s, at_s - due_s)
            else:
                self._tbt.add(at_s, at_s - last_s)
            for _ in range(tokens - 1):
                self._tbt.add(at_s, 0.0)
            last_s = at_s

        return observe

    def ttft(self, now_s: float) -> LatencyStats:
        """First tokens that came, and the waits so far that already exceed the longest of them."""
        came = self._ttft.values(now_s)
        longest = max(came, default=0.0)
        waits = (now_s - due_s for due_s in self._due_s.values())
        return latency_stats([*came, *(wait for wait in waits if wait > longest)])

    def tbt(self, now_s: float) -> LatencyStats:
        """Gaps between tokens."""
        return latency_stats(self._tbt.values(now_s))
