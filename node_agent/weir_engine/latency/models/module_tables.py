"""A model's modules measured apart, as tables: the dense ones by tokens, attention by two counts.

Measuring is the probe's; predicting a step from the tables is ``modulewise``'s.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Protocol, Self

from weir_engine.errors import ConfigError
from weir_engine.latency.models.grid import Grid, Unevenness
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

    def __post_init__(self) -> None:
        (small, _), (large, _) = self.beside
        if len(self.dense) < 2 or not all(isfinite(seconds) for seconds in self.dense):
            raise ConfigError(
                "latency.tables.dense needs seconds of two sizes or more, all finite: profile again"
            )
        if not small < large:
            raise ConfigError(
                f"latency.tables.beside is of prefills of {small} and {large} tokens: they must "
                "rise; profile again"
            )

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
        except (KeyError, TypeError, ValueError, OverflowError) as error:
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
