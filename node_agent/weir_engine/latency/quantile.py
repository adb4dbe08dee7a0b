"""How far steps overrun their prediction: quantiles of actual / predicted, by size of the step.

Sliding windows, so that a machine that turns noisy is believed within a few hundred steps.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, exp, isfinite, log2
from statistics import NormalDist

from weir_engine.errors import ConfigError

_SMALLEST_S = 2.0**-11  # the first knot: shorter steps share its ratio
_PER_OCTAVE = 2
_KNOTS = 33  # up to 32 s
_KNOT_S: tuple[float, ...] = tuple(_SMALLEST_S * 2 ** (i / _PER_OCTAVE) for i in range(_KNOTS))
_PRIOR_SIGMA = 0.1  # log-normal spread believed before anything was measured
_LOWEST, _HIGHEST = 0.5, 20.0
_REBUILD_EVERY = 16
# A size that so many steps did not have is forgotten where one of its steps overran so many times
# what any did lately: a limit that follows one pause of the machine, or the steps that a machine
# took too long for before a fit followed its becoming slower, keeps steps from that size, and
# nothing else would ever correct it.
_UNSEEN_STEPS = 4096
_FAR = 1.25
_MEDIAN = 0.5
# What nine of ten steps overran by at most, to this power, is as much as noise does in one of
# hundreds (log-normal: 2.7 / 1.28). What is beyond is a pause of the machine, or a fit that missed:
# seconds, which are no more in a longer step.
_NOISE_QUANTILE = 0.9
_NOISE_POWER = 2.2


@dataclass(slots=True)
class _Window:
    """The newest ratios, also kept sorted: adding is O(size), reading a quantile O(1)."""

    size: int
    ratios: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)
    newest: int = 0  # the number of the step that was added last

    def add(self, ratio: float) -> None:
        if len(self.ratios) == self.size:
            del self.ordered[bisect_left(self.ordered, self.ratios.popleft())]
        self.ratios.append(ratio)
        insort(self.ordered, ratio)

    def quantile(self, q: float) -> float:
        """The smallest ratio that covers a fraction q of future ones (conformal rank)."""
        return self.ordered[self.rank(q)]

    def rank(self, q: float) -> int:
        """That ratio's place among them."""
        rank = ceil((len(self.ordered) + 1) * q) - 1
        return min(max(rank, 0), len(self.ordered) - 1)


@dataclass(slots=True)
class _Pool(_Window):
    """Ratios of all sizes; what is beyond noise counts for less in steps longer than its own."""

    predicted_s: deque[float] = field(default_factory=deque)  # beside ``ratios``

    def keep(self, ratio: float, predicted_s: float) -> None:
        """One more, of a step that had been predicted at so many seconds."""
        if len(self.ratios) == self.size:
            self.predicted_s.popleft()
        self.predicted_s.append(predicted_s)
        self.add(ratio)

    def quantiles(self, q: float) -> list[float]:
        """``quantile`` by knot, of what the ratios would be in steps of that size."""
        rank = self.rank(q)
        noise = self.quantile(_NOISE_QUANTILE) ** _NOISE_POWER
        above = len(self.ordered) - 1 - rank
        if self.ordered[rank] <= noise:
            return [self.ordered[rank]] * _KNOTS
        overran = [
            (ratio - 1, (ratio - 1) * own_s)
            for ratio, own_s in zip(self.ratios, self.predicted_s, strict=True)
            if ratio > noise
        ]
        found = []
        for knot_s in _KNOT_S:
            shares = [min(share, seconds / knot_s) for share, seconds in overran]
            shares.sort()
            found.append(max(noise, 1 + shares[-1 - above]))
        return found


class ResidualQuantiles:
    """Maps a median prediction to the seconds that a fraction q of such steps stay within.

    Piecewise linear between knots half an octave apart, continuous and increasing, so a limit can
    be turned back into the largest median that it allows. A size with few steps borrows from the
    pool of all sizes, where pauses are taken as seconds, and the pool from a 10% spread.
    """

    def __init__(self, window: int = 256, pool_window: int = 512) -> None:
        self._window = window
        self._pool = _Pool(pool_window)
        self._buckets: list[_Window | None] = [None] * _KNOTS
        self._tables: dict[float, tuple[float, ...]] = {}
        self._added = 0
        self._new: list[tuple[float, float]] = []  # not yet in their windows

    def add(self, predicted_s: float, actual_s: float) -> None:
        """Record what a step took that had been predicted at ``predicted_s``, both above 0."""
        # Sorted in when somebody reads them: one by one, each would find its window's numbers
        # pushed out of the processor's caches by the model's step.
        self._new.append((predicted_s, actual_s))
        self._added += 1
        if self._added % _REBUILD_EVERY == 0:
            self._sort_in()
            self._forget_pauses()
            for q in self._tables:
                self._tables[q] = self._build(q)

    def high(self, predicted_s: float, q: float) -> float:
        """Seconds that a fraction ``q`` (below 1) of such steps stay within.

        Up to a half it is the prediction itself, which already is the median.
        """
        if q <= _MEDIAN:
            return predicted_s
        table = self._tables.get(q) or self._add_table(q)
        if predicted_s <= _SMALLEST_S:
            return predicted_s * table[0] / _SMALLEST_S
        if predicted_s >= _KNOT_S[-1]:
            return predicted_s * table[-1] / _KNOT_S[-1]
        i = min(int(log2(predicted_s / _SMALLEST_S) * _PER_OCTAVE), _KNOTS - 2)
        low_s, low = _KNOT_S[i], table[i]
        return low + (table[i + 1] - low) * (predicted_s - low_s) / (_KNOT_S[i + 1] - low_s)

    def within(self, limit_s: float, q: float) -> float:
        """The largest median prediction whose ``high`` is at most ``limit_s``."""
        if q <= _MEDIAN:
            return limit_s
        table = self._tables.get(q) or self._add_table(q)
        if limit_s <= table[0]:
            return limit_s * _SMALLEST_S / table[0]
        if limit_s >= table[-1]:
            return limit_s * _KNOT_S[-1] / table[-1]
        i = bisect_left(table, limit_s) - 1
        low, low_s = table[i], _KNOT_S[i]
        return low_s + (_KNOT_S[i + 1] - low_s) * (limit_s - low) / (table[i + 1] - low)

    def state(self) -> dict[str, list[float]]:
        """The recorded ratios by bucket, for a saved profile."""
        self._sort_in()
        return {str(i): list(b.ratios) for i, b in enumerate(self._buckets) if b is not None}

    @classmethod
    def from_state(cls, state: Mapping[str, Iterable[float]]) -> "ResidualQuantiles":
        """What ``state`` gave.

        Raises:
            ConfigError: an unknown bucket, or a ratio that is not a positive number.
        """
        made = cls()
        for name, ratios in state.items():
            if not (name.isdecimal() and int(name) < _KNOTS):
                raise ConfigError(f"latency.residuals has bucket {name!r}: give 0 to {_KNOTS - 1}")
            for ratio in ratios:
                if not (isfinite(ratio) and ratio > 0):
                    raise ConfigError(f"latency.residuals[{name}] has {ratio}: give ratios above 0")
                made._keep(int(name), ratio, _KNOT_S[int(name)])
        return made

    def _sort_in(self) -> None:
        first = self._added - len(self._new) + 1
        for number, (predicted_s, actual_s) in enumerate(self._new, first):
            index = round(log2(predicted_s / _SMALLEST_S) * _PER_OCTAVE)
            index = min(max(index, 0), _KNOTS - 1)
            bucket = self._keep(index, actual_s / predicted_s, predicted_s)
            bucket.newest = number
        self._new.clear()

    def _keep(self, index: int, ratio: float, predicted_s: float) -> _Window:
        bucket = self._buckets[index]
        if bucket is None:
            bucket = self._buckets[index] = _Window(self._window)
        bounded = min(max(ratio, _LOWEST), _HIGHEST)
        bucket.add(bounded)
        self._pool.keep(bounded, predicted_s)
        return bucket

    def _forget_pauses(self) -> None:
        most = _FAR * self._pool.ordered[-1]
        for index, bucket in enumerate(self._buckets):
            if bucket is None or self._added - bucket.newest < _UNSEEN_STEPS:
                continue
            if bucket.ordered[-1] > most:
                self._buckets[index] = None

    def _add_table(self, q: float) -> tuple[float, ...]:
        if not q < 1:
            raise ConfigError(f"q is {q}: give a quantile below 1")
        self._sort_in()
        table = self._tables[q] = self._build(q)
        return table

    def _build(self, q: float) -> tuple[float, ...]:
        borrowed = min(max(0.25 / (1 - q), 2.0), 50.0)  # steps' worth of trust in the wider pool
        prior = exp(_PRIOR_SIGMA * NormalDist().inv_cdf(q))
        pooled = len(self._pool.ordered)
        pool = self._pool.quantiles(q) if pooled else [prior] * _KNOTS
        table: list[float] = []
        floor_s = 0.0
        for knot_s, of_all, bucket in zip(_KNOT_S, pool, self._buckets, strict=True):
            ratio = (pooled * of_all + borrowed * prior) / (pooled + borrowed)
            if bucket is not None:
                count = len(bucket.ordered)
                ratio = (count * bucket.quantile(q) + borrowed * ratio) / (count + borrowed)
            # More work never promises less, even where the longer steps are the quieter ones.
            floor_s = max(knot_s * ratio, floor_s * 1.001)
            table.append(floor_s)
        return tuple(table)
