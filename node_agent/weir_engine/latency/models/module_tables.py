"""A model's modules measured apart, as tables: the dense ones by tokens, attention by two counts.

Measuring is the probe's; predicting a step from the tables is ``modulewise``'s.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from weir_engine.errors import ConfigError
from weir_engine.latency.models.spikes import spike_search, table_of

_REPEATS = 5
_CONTEXT_STEP = 256
_MEAN_PERCENT = (10, 20, 33, 48, 70)  # of the longest context, where uneven decodes are measured
_UNEVEN_MEAN_TOKENS = 1024
_LINEAR_FROM = 4096  # above, attention grows in proportion: every doubling is enough


class ModuleProbe(Protocol):
    """Measures one kind of module over all layers, in seconds; each call measures anew."""

    def dense(self, tokens: int) -> float:
        """All operators but attention, for that many tokens in a step."""
        ...

    def transfers(self, tokens: int) -> float:
        """What the GPUs send each other in a step of that many tokens; 0 for one GPU."""
        ...

    def prefill_attention(self, new_tokens: int, computed_tokens: int) -> float:
        """Attention of one prefill."""
        ...

    def decode_attention(
        self,
        sequences: int,
        context_tokens: int,
        beside_tokens: int,
        longest_tokens: int | None = None,
    ) -> float:
        """What decodes over ``context_tokens`` each add to a prefill of that size, or to none.

        With ``longest_tokens`` they are uneven: that is their mean, most are shorter, few longer.
        """
        ...


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


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleTables:
    """Seconds of each kind of module over all layers.

    ``dense[n]`` for n tokens, transfers between GPUs included; ``prefill`` by (new tokens of a
    request, tokens before them); ``decode`` by (sequences, context of each); ``beside`` the same in
    a step with a prefill of so many new tokens, for two sizes of it: where one kernel does both,
    decodes cost more there. ``uneven``: what contexts that differ cost, since a kernel ends with
    its longest.

    Source: OmniServe §3.3.1. Deviations: eq. 2 and 3 are lines in Σ n(p + n/2) and in (Σ context,
    number of requests) with a utilisation term; measured kernels leave such lines by 10% and more
    (how the work is split over processors changes with both counts), so both are tables over the
    same two counts, and straight lines are what they fall back to beyond their ends. Transfers are
    measured by size too: α + β tokens misses where the protocol changes (3 to 10 ms at 8 tokens).
    """

    dense: Sequence[float]
    prefill: Grid
    decode: Grid
    beside: tuple[tuple[int, Grid], tuple[int, Grid]]
    uneven: Unevenness

    def dense_s(self, tokens: int) -> float:
        """Dense modules; above the table its overall slope goes on."""
        last = len(self.dense) - 1
        if tokens <= last:
            return self.dense[tokens]
        return self.dense[last] + (self.dense[last] - self.dense[0]) / last * (tokens - last)

    def prefill_s(self, tokens: int, pairs: float, requests: int) -> float:
        """Attention of ``requests`` prefills of ``tokens`` and Σ n(p + n/2) = ``pairs`` in all.

        Counted as equal ones; the linear form makes that exact where it holds.
        """
        each = tokens / requests
        before = max(pairs / tokens - each / 2, 0.0)
        return requests * self.prefill.at(each, before)

    def decode_s(self, sequences: int, context_tokens: int, longest_tokens: int = 0) -> float:
        """Attention of decodes with ``context_tokens`` in all and the longest of that length."""
        mean = context_tokens / sequences
        even_s = self.decode.at(sequences, mean)
        if longest_tokens <= mean:
            return even_s
        longest_s = self.decode.at(sequences, longest_tokens)
        share = self.uneven.share(sequences, mean, longest_tokens, beside=False)
        return even_s + share * (longest_s - even_s)

    def decode_beside_s(
        self, sequences: int, context_tokens: int, prefill_tokens: int, longest_tokens: int = 0
    ) -> float:
        """The same in a step that also prefills ``prefill_tokens``."""
        mean = context_tokens / sequences
        even_s = self._beside_s(sequences, mean, prefill_tokens)
        if longest_tokens <= mean:
            return even_s
        longest_s = self._beside_s(sequences, longest_tokens, prefill_tokens)
        share = self.uneven.share(sequences, mean, longest_tokens, beside=True)
        return even_s + share * (longest_s - even_s)

    def _beside_s(self, sequences: int, context: float, prefill_tokens: int) -> float:
        (small, low), (large, high) = self.beside
        start = low.at(sequences, context)
        share = max((prefill_tokens - small) / (large - small), 0.0)
        return max(start + (high.at(sequences, context) - start) * share, 0.0)

    def state(self) -> dict[str, object]:
        """Plain data that ``of`` makes equal tables from."""
        return {
            "dense": list(self.dense),
            "prefill": self.prefill.plain(),
            "decode": self.decode.plain(),
            "beside": [[tokens, grid.plain()] for tokens, grid in self.beside],
            "uneven": self.uneven.plain(),
        }

    @classmethod
    def of(cls, state: Mapping[str, object]) -> Self:
        """What ``state`` gave.

        Raises:
            ConfigError: a table is missing or no numbers.
        """
        try:
            beside: list[tuple[int, Mapping[str, Sequence[int]]]] = state["beside"]  # type: ignore[assignment]
            (small, low), (large, high) = beside
            return cls(
                dense=[float(v) for v in state["dense"]],  # type: ignore[attr-defined]
                prefill=Grid.of(state["prefill"]),  # type: ignore[arg-type]
                decode=Grid.of(state["decode"]),  # type: ignore[arg-type]
                beside=((int(small), Grid.of(low)), (int(large), Grid.of(high))),
                uneven=Unevenness.of(state["uneven"]),  # type: ignore[arg-type]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"latency.tables lacks a table or holds no numbers ({error}): profile again"
            ) from error

    @classmethod
    def measure(
        cls,
        probe: ModuleProbe,
        *,
        max_batched_tokens: int,
        max_seqs: int,
        max_model_len_tokens: int,
    ) -> Self:
        """Profile a model up to the engine's limits, each point several times.

        A few thousand measurements of single modules: seconds to minutes on a device.
        """
        longest = max(max_model_len_tokens, 2)
        prefills = _axis(_chunks(max_batched_tokens))
        before = _axis([0, *_contexts(longest)])
        sequences = _axis(_counts(max_seqs))
        contexts = _axis([16, *_contexts(longest)])
        most = max_batched_tokens
        dense = table_of(spike_search(lambda n: _mean(lambda: probe.dense(n)), most), most)
        transfers = spike_search(lambda n: _mean(lambda: probe.transfers(n)), most, stepped=True)

        def decode(beside_tokens: int) -> Grid:
            return _grid(
                sequences, contexts, lambda n, c: probe.decode_attention(n, c, beside_tokens)
            )

        def uneven(beside_tokens: int) -> Grid:
            return Grid(
                rows=sequences,
                columns=_MEAN_PERCENT,
                values=[
                    [_uneven_share(probe, n, longest, beside_tokens, p) for p in _MEAN_PERCENT]
                    for n in sequences
                ],
            )

        large = max(max_batched_tokens, 2)
        small = max(large // 8, 1)
        return cls(
            dense=[a + b for a, b in zip(dense, table_of(transfers, most), strict=True)],
            prefill=_grid(prefills, before, probe.prefill_attention),
            decode=decode(0),
            beside=((small, decode(small)), (large, decode(large))),
            uneven=Unevenness(alone=uneven(0), beside=uneven(small)),
        )


_STRAIGHT_DECODE = Grid(rows=(0, 1), columns=(0, 1000), values=((0.0, 0.0), (0.0, 1.4e-3)))
_EVEN = Grid(rows=(1, 2), columns=(10, 100), values=((0.0, 0.0), (0.0, 0.0)))
STRAIGHT_TABLES = ModuleTables(
    dense=(4.5e-4, 9e-4),
    prefill=Grid(
        rows=(0, 1024),
        columns=(0, 1024),
        values=((0.0, 0.0), (1024 * 512 * 1.3e-7, 1024 * 1536 * 1.3e-7)),
    ),
    decode=_STRAIGHT_DECODE,
    beside=((1, _STRAIGHT_DECODE), (2, _STRAIGHT_DECODE)),
    uneven=Unevenness(alone=_EVEN, beside=_EVEN),
)
"""What holds before anything was measured (declared): a small model on two CPU cores."""


def _grid(
    rows: Sequence[int], columns: Sequence[int], measure: Callable[[int, int], float]
) -> Grid:
    return Grid(
        rows=rows,
        columns=columns,
        values=[[_mean(lambda n=n, c=c: measure(n, c)) for c in columns] for n in rows],  # type: ignore[misc]
    )


def _uneven_share(
    probe: ModuleProbe, sequences: int, longest: int, beside_tokens: int, percent: int
) -> float:
    """Measured where the mean context is that much of the longest."""
    mean = max(min(longest * percent // 100, _UNEVEN_MEAN_TOKENS), 1)
    end = mean * 100 // percent
    even_s = _mean(lambda: probe.decode_attention(sequences, mean, beside_tokens))
    longest_s = _mean(lambda: probe.decode_attention(sequences, end, beside_tokens))
    if sequences < 2 or longest_s <= even_s:
        return 0.0
    uneven_s = _mean(lambda: probe.decode_attention(sequences, mean, beside_tokens, end))
    return min(max((uneven_s - even_s) / (longest_s - even_s), 0.0), 1.0)


def _mean(measure: Callable[[], float]) -> float:
    return sum(measure() for _ in range(_REPEATS)) / _REPEATS


def _chunks(limit: int) -> list[int]:
    fine = [*range(16, 129, 16), *range(160, 513, 32), *range(576, 2049, 64)]
    return [n for n in (1, *fine, *(2048 << k for k in range(1, 8))) if n < limit] + [limit]


def _counts(limit: int) -> list[int]:
    fine = [*range(1, 33), *range(34, 65, 2), *range(68, 129, 4), *range(136, 1025, 8)]
    return [n for n in fine if n < limit] + [limit]


def _contexts(longest: int) -> list[int]:
    fine = [64, 128, *range(_CONTEXT_STEP, _LINEAR_FROM + 1, _CONTEXT_STEP)]
    coarse = [_LINEAR_FROM << k for k in range(1, 8)]
    return [n for n in (*fine, *coarse) if n < longest] + [longest]


def _axis(values: Sequence[int]) -> list[int]:
    """Increasing, at least two."""
    axis = sorted(set(values))
    return axis if len(axis) > 1 else [axis[0], axis[0] + 1]


def _place(axis: Sequence[float], x: float) -> tuple[int, float]:
    i = min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)
    return i, (x - axis[i]) / (axis[i + 1] - axis[i])
