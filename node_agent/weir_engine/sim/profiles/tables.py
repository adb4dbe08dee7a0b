"""Measured times as functions of a step's counts, in microseconds. No model and no hardware here.

Between measured points: the next larger size where sizes are at most a tile apart, a line above.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from weir_engine.sim.profiles.data import DecodeData, DegreeData, PrefillRow, SkewData

_TILE_TOKENS = 64


def line(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Linear interpolation in increasing ``xs``; beyond the last pair its slope goes on."""
    i = bisect_right(xs, x, 1, len(xs) - 1) - 1
    return ys[i] + (ys[i + 1] - ys[i]) * max(x - xs[i], 0.0) / (xs[i + 1] - xs[i])


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTable:
    """Microseconds by a whole number of tokens, in tile steps, not smoothed.

    ``values[n]`` is the time of ``n`` tokens; above the last one the slope of the upper half goes
    on.
    """

    values: Sequence[float]

    @classmethod
    def of(cls, tokens: Sequence[int], us: Sequence[float]) -> "StepTable":
        """From measured points; 0 tokens take what 1 takes."""
        values: list[float] = [us[0]] * (tokens[0] + 1)
        pairs = zip(tokens, us, strict=True)
        below, low = next(pairs)
        for above, high in pairs:
            gap = above - below
            if gap <= _TILE_TOKENS:
                values += [high] * gap
            else:
                values += [low + (high - low) * k / gap for k in range(1, gap + 1)]
            below, low = above, high
        return cls(values=values)

    def us(self, tokens: int) -> float:
        """The time of ``tokens`` tokens."""
        last = len(self.values) - 1
        if tokens <= last:
            return self.values[tokens]
        half = last // 2
        slope = (self.values[last] - self.values[half]) / (last - half)
        return self.values[last] + slope * (tokens - last)

    def stretched(self, ratio: float) -> "StepTable":
        """With slower memory: no size is faster than the smallest one times ``ratio``."""
        floor = self.values[0] * ratio
        return StepTable(values=[max(us, floor) for us in self.values])


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """One operator of a layer: its time and the standard deviation of it, by tokens."""

    time: StepTable
    std: StepTable


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseTables:
    """All operators of one layer but attention, and the embedding, which a step has once."""

    modules: Mapping[str, Module]
    embedding: Module
    layer: StepTable = field(init=False)
    layer_std: StepTable = field(init=False)

    def __post_init__(self) -> None:
        columns = [module.time.values for module in self.modules.values()]
        spreads = [module.std.values for module in self.modules.values()]
        total = [sum(cells) for cells in zip(*columns, strict=True)]
        spread = [sqrt(sum(s * s for s in cells)) for cells in zip(*spreads, strict=True)]
        object.__setattr__(self, "layer", StepTable(values=total))
        object.__setattr__(self, "layer_std", StepTable(values=spread))

    @classmethod
    def of(cls, table: DegreeData) -> "DenseTables":
        """From one tensor-parallel degree of a data file."""
        tokens = table["tokens"]
        made = {
            name: Module(
                time=StepTable.of(tokens, cell["us"]), std=StepTable.of(tokens, cell["std_us"])
            )
            for name, cell in table["modules"].items()
        }
        return cls(embedding=made.pop("embedding"), modules=made)

    def stretched(self, ratio: float) -> "DenseTables":
        """With memory slower by ``ratio``, compute as measured."""
        return DenseTables(
            modules={
                name: Module(time=module.time.stretched(ratio), std=module.std)
                for name, module in self.modules.items()
            },
            embedding=self.embedding,
        )


class DecodeTable:
    """Decode attention of one layer, by sequences and the context of each."""

    __slots__ = ("_contexts", "_counts", "_rows", "floor_us")

    def __init__(self, table: DecodeData) -> None:
        self._counts = table["sequences"]
        self._contexts = table["context"]
        self._rows = table["us"]
        self.floor_us = min(row[0] for row in self._rows)  # what launching the kernel takes

    def us(self, sequences: float, context_tokens: float) -> float:
        """Time of ``sequences`` decodes over ``context_tokens`` each.

        Longer contexts than those measured take what more sequences of the longest measured one
        take, with the same sum of contexts: the last two times of a row are launches and noise.
        """
        longest = self._contexts[-1]
        if context_tokens > longest:
            return self.us(sequences * context_tokens / longest, longest)
        counts = self._counts
        i = bisect_right(counts, sequences, 1) - 1
        low = line(self._contexts, self._rows[i], context_tokens)
        if counts[i] == sequences:
            return low
        if i == len(counts) - 1:  # the slope of the upper quarter: one pair alone is mostly noise
            j = bisect_right(counts, counts[i] * 3 // 4) - 1
            start = line(self._contexts, self._rows[j], context_tokens)
            return low + (low - start) * (sequences - counts[i]) / (counts[i] - counts[j])
        high = line(self._contexts, self._rows[i + 1], context_tokens)
        return low + (high - low) * (sequences - counts[i]) / (counts[i + 1] - counts[i])


class PrefillTable:
    """Prefill attention of one layer and one sequence, by new tokens and those before."""

    __slots__ = ("_chunks", "_histories", "_rows")

    def __init__(self, rows: Sequence[PrefillRow]) -> None:
        self._chunks = [row["chunk"] for row in rows]
        self._histories = [row["history"] for row in rows]
        self._rows = [row["us"] for row in rows]

    @property
    def longest_chunk(self) -> int:
        """The largest number of new tokens measured."""
        return self._chunks[-1]

    def us(self, new_tokens: float, computed_tokens: float) -> float:
        """Time of ``new_tokens`` on ``computed_tokens``; fewer than the smallest take as long."""
        chunks = self._chunks
        if new_tokens <= chunks[0]:
            return self._row(0, computed_tokens)
        i = min(bisect_right(chunks, new_tokens) - 1, len(chunks) - 2)
        low, high = self._row(i, computed_tokens), self._row(i + 1, computed_tokens)
        return low + (high - low) * (new_tokens - chunks[i]) / (chunks[i + 1] - chunks[i])

    def _row(self, i: int, computed_tokens: float) -> float:
        """A row, past its end by the pairs of tokens: its last times are the most exact ones.

        The smallest one, whose time is a launch's, grows with the history as the next row does
        where it was measured without any.
        """
        histories, us, chunk = self._histories[i], self._rows[i], self._chunks[i]
        if i == 0 and len(histories) == 1 and len(self._rows) > 1:
            return us[0] * self._row(i + 1, computed_tokens) / self._rows[i + 1][0]
        if computed_tokens < histories[-1]:
            return line(histories, us, computed_tokens)
        pairs = (computed_tokens + chunk / 2) / (histories[-1] + chunk / 2)
        return us[-1] * pairs

    @property
    def floor_us(self) -> float:
        """What launching the kernel takes."""
        return self._rows[0][0]


@dataclass(frozen=True, kw_only=True, slots=True)
class SkewTable:
    """How far an uneven decode batch lies from its mean context towards its longest, 0 to 1.

    ``pure`` and ``mixed`` are by sequences, the fewest first: with and without prefill in the step.
    """

    shares: Sequence[float]
    pure: Mapping[int, Sequence[float]]
    mixed: Mapping[int, Sequence[float]]
    _pure_sequences: Sequence[int] = field(init=False, repr=False)
    _mixed_sequences: Sequence[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pure_sequences", tuple(self.pure))
        object.__setattr__(self, "_mixed_sequences", tuple(self.mixed))

    @classmethod
    def of(cls, table: SkewData) -> "SkewTable":
        """From a data file."""
        pure, mixed = table["pure"], table["mixed"]
        return cls(
            shares=table["shares"],
            pure=dict(zip(pure["sequences"], pure["alpha"], strict=True)),
            mixed=dict(zip(mixed["sequences"], mixed["alpha"], strict=True)),
        )

    def alpha(self, sequences: int, share: float, *, with_prefill: bool) -> float:
        """For ``sequences`` whose mean is ``share`` of the way from the shortest to the longest."""
        rows = self.mixed if with_prefill else self.pure
        column = max(bisect_right(self.shares, share) - 1, 0)
        measured = self._mixed_sequences if with_prefill else self._pure_sequences
        above = bisect_left(measured, sequences)
        nearest = measured[min(above, len(measured) - 1)]
        if above and sequences - measured[above - 1] <= abs(nearest - sequences):
            nearest = measured[above - 1]
        return rows[nearest][column]
