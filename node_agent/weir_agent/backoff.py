"""Full-jitter exponential backoff. Pure; the random source is an argument."""

from __future__ import annotations

from random import Random


class Backoff:
    """Pauses after failures: uniform between 0 and a ceiling that doubles up to ``most_s``."""

    def __init__(self, *, first_s: float, most_s: float, random: Random) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._random = random
        self._failures = 0

    def reset(self) -> None:
        """A call succeeded."""
        self._failures = 0

    def pause_s(self) -> float:
        """The pause after one more failure."""
        ceiling_s = min(self._most_s, self._first_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return self._random.uniform(0.0, ceiling_s)
