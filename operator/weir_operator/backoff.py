"""Pauses and rates: full-jitter backoff and a token bucket. Pure over an injected clock."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Clock = Callable[[], float]
"""Monotonic seconds."""


def jittered_s(failures: int, *, first_s: float, most_s: float, random: Random) -> float:
    """The pause after that many failures in a row (≥ 1): uniform up to a ceiling that doubles."""
    ceiling_s = min(most_s, first_s * 2.0 ** min(failures - 1, 30))
    return random.uniform(0.0, ceiling_s)


class TokenBucket:
    """At most ``rate_per_s`` takes a second in the long run, ``burst`` of them at once."""

    def __init__(self, *, rate_per_s: float, burst: float, clock: Clock) -> None:
        self._rate_per_s = rate_per_s
        self._burst = max(1.0, burst)
        self._clock = clock
        self._tokens = self._burst
        self._at_s = clock()

    def wait_s(self) -> float:
        """Takes a token if there is one and returns 0; else how long until there is one."""
        now_s = self._clock()
        grown = (now_s - self._at_s) * self._rate_per_s
        self._tokens = min(self._burst, self._tokens + grown)
        self._at_s = now_s
        if self._tokens >= 1.0 - 1e-9:
            self._tokens -= 1.0
            return 0.0
        return (1.0 - self._tokens) / self._rate_per_s
