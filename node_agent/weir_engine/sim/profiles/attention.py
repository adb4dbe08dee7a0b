"""Attention of one layer in microseconds: apart for prefill and decode, or fused as measured.

What a step asks of it is a ``StepBatch``; which requests those are is nobody's business here.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple, Protocol

from weir_engine.sim.profiles.data import FusedData
from weir_engine.sim.profiles.tables import DecodeTable, PrefillTable, SkewTable


class StepBatch(NamedTuple):
    """What a step computes.

    ``prefills`` are (new, computed) tokens each; ``context_tokens`` the sum over the decodes,
    ``shortest_tokens`` and ``longest_tokens`` their extremes.
    """

    tokens: int
    prefills: Sequence[tuple[int, int]]
    decodes: int
    context_tokens: int
    shortest_tokens: int
    longest_tokens: int

    @property
    def sequences(self) -> int:
        """Requests in the step."""
        return len(self.prefills) + self.decodes

    @property
    def skew_share(self) -> float:
        """Where the mean context lies between the shortest (0) and the longest (1)."""
        span = self.longest_tokens - self.shortest_tokens
        if span <= 0:
            return 0.0
        return (self.context_tokens / self.decodes - self.shortest_tokens) / span


class Attention(Protocol):
    """Times of one layer's attention."""

    def us(self, batch: StepBatch) -> tuple[float, float, float]:
        """Of the prefills, of the decodes, and the standard deviation of both together."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class SeparateAttention:
    """Prefill and decode in kernels of their own, as measured; other shapes are derived.

    ``prefill_scale`` is query heads over those measured, ``decode_scale`` KV heads over those
    measured (times slower memory): the time above a launch grows with them. Several prefills share
    a launch. A decode batch of uneven contexts lies between its mean and its longest by ``skew``.
    """

    prefill: PrefillTable
    decode: DecodeTable
    skew: SkewTable
    prefill_scale: float = 1.0
    decode_scale: float = 1.0
    prefill_relative_std: float
    decode_relative_std: float

    def us(self, batch: StepBatch) -> tuple[float, float, float]:
        """Prefill, decode and deviation."""
        prefill_us = self._prefill_us(batch.prefills) if batch.prefills else 0.0
        decode_us = self._decode_us(batch) if batch.decodes else 0.0
        prefill_std = prefill_us * self.prefill_relative_std
        decode_std = decode_us * self.decode_relative_std
        return prefill_us, decode_us, sqrt(prefill_std * prefill_std + decode_std * decode_std)

    def _prefill_us(self, prefills: Sequence[tuple[int, int]]) -> float:
        floor = self.prefill.floor_us
        longest = self.prefill.longest_chunk
        work = 0.0
        for new_tokens, computed_tokens in prefills:
            left, done = new_tokens, computed_tokens
            while left > longest:
                work += self.prefill.us(longest, done) - floor
                left, done = left - longest, done + longest
            work += self.prefill.us(left, done) - floor
        return floor + max(work, 0.0) * self.prefill_scale

    def _decode_us(self, batch: StepBatch) -> float:
        mean = self.decode.us(batch.decodes, batch.context_tokens / batch.decodes)
        share = batch.skew_share
        if share > 0.0:
            alpha = self.skew.alpha(batch.decodes, share, with_prefill=bool(batch.prefills))
            if alpha > 0.0:
                longest = self.decode.us(batch.decodes, batch.longest_tokens)
                mean += alpha * (longest - mean)
        floor = self.decode.floor_us
        return floor + max(mean - floor, 0.0) * self.decode_scale


class FusedAttention:
    """One kernel for prefill and decode together, on a grid of all four counts, linear between.

    Several prefills count as one of all their new tokens whose history gives the same pairs; where
    they have fewer pairs than any single prefill of that length, as a shorter one of equal pairs.
    Beyond the last history the prefill alone grows, beyond the last context the decodes alone, by
    the sum of contexts: the last cells differ by waves of the GPU, and their slopes contradict each
    other.
    """

    __slots__ = (
        "_chunks",
        "_contexts",
        "_decodes",
        "_histories",
        "_mixed",
        "_pure",
        "_pure_contexts",
        "_pure_decodes",
        "_relative_std",
        "_skew",
    )

    def __init__(self, table: FusedData, skew: SkewTable) -> None:
        contexts = table["context"]
        self._chunks = table["chunk"]
        self._histories = table["history"]
        self._decodes = [0, *table["decodes"]]
        self._contexts = contexts
        self._mixed = [[_plane(row, len(contexts)) for row in plane] for plane in table["us"]]
        self._pure_decodes = table["pure_decodes"]
        self._pure_contexts = table["pure_context"]
        self._pure = table["pure_us"]
        self._relative_std = table["relative_std"]
        self._skew = skew

    def us(self, batch: StepBatch) -> tuple[float, float, float]:
        """Prefill, decode (what it adds to the prefill) and deviation."""
        if not batch.prefills:
            decode_us = self._uneven(batch, 0.0, 0.0) if batch.decodes else 0.0
            return 0.0, decode_us, decode_us * self._relative_std
        new_tokens = sum(n for n, _ in batch.prefills)
        pairs = sum(n * (p + n / 2) for n, p in batch.prefills)
        history = pairs / new_tokens - new_tokens / 2
        chunk = float(new_tokens)
        if history < 0:
            chunk, history = sqrt(2 * pairs), 0.0
        longest = self._chunks[-1]
        before = 0.0
        while chunk > longest:
            before += self._grid(longest, history, 0, 0)
            chunk, history = chunk - longest, history + longest
        alone = before + self._grid(chunk, history, 0, 0)
        both = before + self._uneven(batch, chunk, history) if batch.decodes else alone
        return alone, max(both - alone, 0.0), both * self._relative_std

    def _uneven(self, batch: StepBatch, chunk: float, history: float) -> float:
        n = batch.decodes
        mean = self._at(chunk, history, n, batch.context_tokens / n)
        share = batch.skew_share
        if share > 0.0:
            alpha = self._skew.alpha(n, share, with_prefill=chunk > 0)
            if alpha > 0.0:
                mean += alpha * (self._at(chunk, history, n, batch.longest_tokens) - mean)
        return mean

    def _at(self, chunk: float, history: float, decodes: int, context: float) -> float:
        """Anywhere; between no prefill and the smallest one measured along a line."""
        smallest = self._chunks[0]
        if chunk >= smallest:
            return self._beyond(chunk, history, decodes, context)
        pure = self._pure_us(decodes, context)
        if chunk <= 0:
            return pure
        return pure + (self._beyond(smallest, history, decodes, context) - pure) * chunk / smallest

    def _pure_us(self, decodes: int, context: float) -> float:
        i, a = _place(self._pure_decodes, decodes)
        j, b = _place(self._pure_contexts, context)
        low, high = self._pure[i], self._pure[i + 1]
        start = low[j] + (low[j + 1] - low[j]) * b
        return start + (high[j] + (high[j + 1] - high[j]) * b - start) * a

    def _beyond(self, chunk: float, history: float, decodes: int, context: float) -> float:
        """On the grid and outside of it; never less than the decodes take without the prefill."""
        last_history, last_context = self._histories[-1], self._contexts[-1]
        if history <= last_history and context <= last_context:
            return self._grid(chunk, history, decodes, context)
        measured = min(history, last_history)
        alone = self._grid(chunk, measured, 0, 0)
        both = self._grid(chunk, measured, decodes, min(context, last_context))
        if context > last_context:
            added = max(both - alone, 0.0) * context / last_context
            both = max(alone + added, self._pure_us(decodes, context))
        return both + self._grid(chunk, history, 0, 0) - alone

    def _grid(self, chunk: float, history: float, decodes: float, context: float) -> float:
        i, a = _place(self._chunks, chunk)
        j, b = _place(self._histories, history)
        k, c = _place(self._decodes, decodes)
        m, d = _place(self._contexts, context)
        total = 0.0
        for di, wi in ((0, 1 - a), (1, a)):
            for dj, wj in ((0, 1 - b), (1, b)):
                rows = self._mixed[i + di][j + dj]
                low, high = rows[k], rows[k + 1]
                start = low[m] + (low[m + 1] - low[m]) * d
                end = high[m] + (high[m + 1] - high[m]) * d
                total += wi * wj * (start + (end - start) * c)
        return total


def _place(axis: Sequence[float], x: float) -> tuple[int, float]:
    """The cell of ``x`` and where it lies in it: above 1 beyond the last point."""
    i = min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)
    return i, max(x - axis[i], 0.0) / (axis[i + 1] - axis[i])


def _plane(row: Sequence[float], contexts: int) -> list[list[float]]:
    """Rows by decodes; the first, without a decode, is the same for every context."""
    rows = [[row[0]] * contexts]
    rows += [list(row[i : i + contexts]) for i in range(1, len(row), contexts)]
    return rows
