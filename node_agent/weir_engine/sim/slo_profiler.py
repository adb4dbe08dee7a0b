"""Finds by bisection how much offline work a recent trace bears: a budget, or a rate.

Used by benchmarks and by a control plane alike; each level costs one simulation.
"""

from collections.abc import Callable, Sequence

from weir_engine.config import Slo
from weir_engine.errors import ConfigError
from weir_engine.sim.report import Latencies, attained


def geometric_levels(low: float, high: float, count: int) -> tuple[float, ...]:
    """``count`` levels from ``low`` to ``high``, each the same factor above the one before.

    Raises:
        ConfigError: not 0 < low < high, or fewer than two levels.
    """
    if not 0 < low < high or count < 2:
        raise ConfigError(f"levels are {low} to {high} in {count}: give 0 < low < high, 2 or more")
    factor = (high / low) ** (1 / (count - 1))
    return tuple(low * factor**i for i in range(count))


class SloProfiler:
    """The highest level whose online latencies hold every objective.

    ``measure`` simulates the trace at a level (seconds of step budget, requests a second, ...) and
    gives its online latencies; a level is measured once, whatever is asked of it. ``levels`` rise,
    and latencies are taken to rise with them.

    Source: HyGen §4.2, SLO-aware profiling: binary search on the latency budget. Several objectives
    at once: the worst ratio of measured to threshold decides (HyGen §5.4).
    """

    def __init__(self, measure: Callable[[float], Latencies], levels: Sequence[float]) -> None:
        if not levels or list(levels) != sorted(levels):
            raise ConfigError(f"levels are {list(levels)}: give at least one, in rising order")
        self._measure = measure
        self._levels = tuple(levels)
        self._known: dict[float, Latencies] = {}

    @property
    def measured(self) -> int:
        """Levels that were simulated."""
        return len(self._known)

    def best(self, slos: Sequence[Slo]) -> float | None:
        """The highest level that holds all ``slos``; None: not even the lowest does.

        Raises:
            ConfigError: no objective, or nothing was measured that one is about.
        """
        if not slos:
            raise ConfigError("slos is empty: give at least one objective")
        low, high = -1, len(self._levels) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if attained(self.latencies(self._levels[middle]), slos) <= 1.0:
                low = middle
            else:
                high = middle - 1
        return None if low < 0 else self._levels[low]

    def latencies(self, level: float) -> Latencies:
        """The online latencies at a level, simulated once."""
        known = self._known.get(level)
        if known is None:
            known = self._known[level] = self._measure(level)
        return known
