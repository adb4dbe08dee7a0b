"""When an agent should call again, and when a replica has too much to do: pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

BASE_S = 1.0
MAX_S = 15.0
BUSY_S = 0.05  # a sync that takes longer than this on average slows the agents down
_WEIGHT = 0.05


@dataclass(kw_only=True)
class Pace:
    """Names the next sync: a second, jittered, longer as syncs take longer (§8.11)."""

    uniform: Callable[[float, float], float] = random.uniform  # noqa: S311 - not a secret
    average_s: float = 0.0

    def took(self, duration_s: float) -> None:
        """Notes how long a sync took."""
        self.average_s += _WEIGHT * (duration_s - self.average_s)

    def next_sync_s(self) -> float:
        """Seconds until the agent should call again, in [0.9, 15]."""
        wanted = BASE_S * max(1.0, self.average_s / BUSY_S)
        return min(MAX_S, wanted * self.uniform(0.9, 1.1))

    def retry_after_s(self) -> int:
        """Seconds that a refused agent should wait: 1 to 10, more under more load."""
        return round(self.uniform(1.0, min(10.0, 2.0 + self.average_s / BUSY_S)))
