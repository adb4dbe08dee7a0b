"""Measured values over two counts: bilinear between its crossings, linear beyond them."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Self

from weir_engine.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Values at the crossings of two increasing axes; bilinear between, linear beyond."""

    rows: Sequence[int]
    columns: Sequence[int]
    values: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        shape_ok = len(self.values) == len(self.rows) and all(
            len(row) == len(self.columns) for row in self.values
        )
        if not (shape_ok and len(self.rows) > 1 and len(self.columns) > 1):
            raise ConfigError(
                f"latency.tables: a grid of {len(self.rows)} x {len(self.columns)} needs as many "
                "values and two or more on each axis: profile again"
            )
        rising = all(a < b for axis in (self.rows, self.columns) for a, b in pairwise(axis))
        if not (rising and all(isfinite(value) for row in self.values for value in row)):
            raise ConfigError(
                "latency.tables: a grid needs axes that rise and finite values: profile again"
            )

    def at(self, row: float, column: float) -> float:
        """The value there, never below 0."""
        i, a = _place(self.rows, row)
        j, b = _place(self.columns, column)
        low, high = self.values[i], self.values[i + 1]
        start = low[j] + (low[j + 1] - low[j]) * b
        end = high[j] + (high[j + 1] - high[j]) * b
        return max(start + (end - start) * a, 0.0)

    def plain(self) -> dict[str, object]:
        """As lists, for a saved profile."""
        return {
            "rows": list(self.rows),
            "columns": list(self.columns),
            "values": [list(row) for row in self.values],
        }

    @classmethod
    def of(cls, plain: Mapping[str, Sequence[int]]) -> Self:
        """What ``plain`` gave."""
        values: Sequence[Sequence[float]] = plain["values"]  # type: ignore[assignment]
        return cls(
            rows=[int(n) for n in plain["rows"]],
            columns=[int(n) for n in plain["columns"]],
            values=[[float(v) for v in row] for row in values],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Unevenness:
    """How far decodes of uneven contexts lie from even ones of their mean towards their longest.

    Shares of 0 to 1 by the number of decodes and their mean in percent of the longest, ``alone``
    and ``beside`` a prefill.
    """

    alone: Grid
    beside: Grid

    def share(self, sequences: int, mean: float, longest: int, *, beside: bool) -> float:
        """For that many decodes of that mean context; beyond the grid its edge goes on."""
        grid = self.beside if beside else self.alone
        row = min(max(sequences, grid.rows[0]), grid.rows[-1])
        percent = min(max(100 * mean / longest, grid.columns[0]), grid.columns[-1])
        return min(grid.at(row, percent), 1.0)

    def plain(self) -> dict[str, object]:
        """As lists, for a saved profile."""
        return {"alone": self.alone.plain(), "beside": self.beside.plain()}

    @classmethod
    def of(cls, plain: Mapping[str, Mapping[str, Sequence[int]]]) -> Self:
        """What ``plain`` gave."""
        return cls(alone=Grid.of(plain["alone"]), beside=Grid.of(plain["beside"]))


def _place(axis: Sequence[float], x: float) -> tuple[int, float]:
    i = min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)
    return i, (x - axis[i]) / (axis[i + 1] - axis[i])
