"""How the steps of a recorded engine spread about their fitted time, and in which order."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from sys import float_info
from typing import Self

import numpy as np

from weir_engine.errors import ConfigError
from weir_engine.latency.fit import Array

_KEPT_RATIOS = 101
_STEPS_A_SIZE = 100  # fewer do not show the tail of their noise
_KEPT_RANKS = 20_000  # about half an hour of a busy engine


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseOfSize:
    """How measured steps of one size spread about their fitted time.

    ``upto_s`` is the longest fitted time of the size; ``ratios`` are quantiles of measured over
    fitted, evenly spaced, stalls included.
    """

    upto_s: float
    ratios: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedNoise:
    """Measured over fitted time of an engine's steps.

    ``sizes`` from short to long: short steps spread wider than long ones, and a scheduler that
    learns the spread leaves as much room as it sees; beyond the last size that one holds.
    ``ranks`` are the quantiles that the steps had among those of their size, 0 to 1, in the order
    in which they were recorded: slow steps come in a row, as something disturbs the machine for a
    while. A scheduler that keeps to the slowest of its last steps leaves more room for a while
    after such a row, and less the rest of the time, than one whose slow steps come one by one.
    """

    sizes: tuple[NoiseOfSize, ...]
    ranks: tuple[float, ...]

    @classmethod
    def fit(cls, fitted_s: Array, seconds: Array) -> Self:
        """Of recorded steps in their order; shapes (steps,)."""
        order = np.argsort(fitted_s)
        groups = np.array_split(order, max(1, len(order) // _STEPS_A_SIZE))
        at = np.linspace(0, 1, _KEPT_RATIOS)
        ratios = seconds / fitted_s
        ranks = np.zeros(len(order))
        for group in groups:
            places = np.argsort(np.argsort(ratios[group]))
            ranks[group] = places / max(1, len(group) - 1)
        return cls(
            sizes=tuple(
                NoiseOfSize(
                    upto_s=float(fitted_s[group[-1]]),
                    ratios=tuple(float(r) for r in np.quantile(ratios[group], at)),
                )
                for group in groups
            ),
            ranks=tuple(round(float(rank), 3) for rank in ranks[-_KEPT_RANKS:]),
        )

    def ratio(self, step_s: float, rank: float) -> float:
        """Measured over fitted for a step fitted at ``step_s``, at a quantile of 0 to 1."""
        size = min(bisect_left(self.sizes, step_s, key=_upto_s), len(self.sizes) - 1)
        ratios = self.sizes[size].ratios
        at = rank * (len(ratios) - 1)
        i = min(int(at), len(ratios) - 2)
        return ratios[i] + (ratios[i + 1] - ratios[i]) * (at - i)

    def slower(self, factor: float) -> Self:
        """Of the same engine on a machine on which every step takes ``factor`` times as long."""
        sizes = tuple(replace(size, upto_s=factor * size.upto_s) for size in self.sizes)
        return replace(self, sizes=sizes)

    def plain(self) -> dict[str, object]:
        """As lists, for a file."""
        return {
            "noise": [{"upto_s": s.upto_s, "ratios": list(s.ratios)} for s in self.sizes],
            "ranks": list(self.ranks),
        }

    @classmethod
    def of(cls, plain: Mapping[str, object]) -> Self:
        """What ``plain`` gave.

        Raises:
            ConfigError: a list is missing, too short or no numbers.
        """
        sizes = plain.get("noise")
        rows = sizes if isinstance(sizes, list) else []
        if not rows or not all(isinstance(row, Mapping) for row in rows):
            raise ConfigError("recorded profile: noise must be a list of sizes: record it again")
        ranks = numbers_of(plain, "ranks", 1)
        if not all(0 <= rank <= 1 for rank in ranks):
            raise ConfigError("recorded profile: ranks must be 0 to 1: record it again")
        return cls(
            sizes=tuple(
                NoiseOfSize(
                    upto_s=numbers_of({"upto_s": [row.get("upto_s")]}, "upto_s", 1)[0],
                    ratios=numbers_of(row, "ratios", 2),
                )
                for row in rows
            ),
            ranks=ranks,
        )


def _upto_s(size: NoiseOfSize) -> float:
    return size.upto_s


def numbers_of(plain: Mapping[str, object], name: str, fewest: int) -> tuple[float, ...]:
    """A list of a recorded profile.

    Raises:
        ConfigError: it is missing, too short or no numbers of 0 or more.
    """
    values = plain.get(name)
    found = values if isinstance(values, list) else []
    numbers = [value for value in found if isinstance(value, int | float)]
    good = all(0 <= number <= float_info.max for number in numbers)
    if not (good and fewest <= len(numbers) == len(found)):
        raise ConfigError(
            f"recorded profile: {name} must be {fewest} numbers or more, none below 0: "
            "record it again"
        )
    return tuple(map(float, numbers))
