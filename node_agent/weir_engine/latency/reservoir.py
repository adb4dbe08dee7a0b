"""Steps kept for the next fit: the newest few of every kind of step, never only the latest kind.

A long stretch of equal steps must not push out the shapes that tell the coefficients apart.
"""

from collections import OrderedDict

import numpy as np

from weir_engine.latency.features import StepShape
from weir_engine.latency.fit import Array

_Key = tuple[int, int, int]


class ShapeReservoir:
    """A bounded table of measured steps, ``per_kind`` for each of at most ``kinds`` kinds.

    Steps are of one kind when their prefill tokens, decodes and context agree to about a power of
    two. The kind not seen for longest goes first.
    """

    def __init__(self, columns: int, kinds: int = 128, per_kind: int = 6) -> None:
        rows = kinds * per_kind
        self._per_kind = per_kind
        self._features = np.zeros((rows, columns))
        self._seconds = np.zeros(rows)
        self._born = np.zeros(rows)
        self._used = np.zeros(rows, dtype=bool)
        self._new: dict[int, tuple[tuple[float, ...], float, int]] = {}  # rows not yet written
        self._vacant = list(range(rows - per_kind, -1, -per_kind))
        self._kinds: OrderedDict[_Key, tuple[int, int]] = OrderedDict()
        self.added = 0

    def __len__(self) -> int:
        self._write()
        return int(self._used.sum())

    def add(self, shape: StepShape, features: tuple[float, ...], seconds: float) -> None:
        """Keep a measured step in place of the oldest one of its kind."""
        key = (
            shape.prefill_tokens.bit_length(),
            shape.decode_requests.bit_length(),
            shape.decode_context.bit_length() // 2,
        )
        entry = self._kinds.get(key)
        if entry is None:
            base, turn = self._claim(), 0
        else:
            base, turn = entry
        self._new[base + turn] = (features, seconds, self.added)
        self._kinds[key] = (base, (turn + 1) % self._per_kind)
        self._kinds.move_to_end(key)
        self.added += 1

    def rows(self, half_life_steps: float) -> tuple[Array, Array, Array]:
        """Features, seconds and weights of all kept steps; older ones weigh less, never nothing."""
        self._write()
        used = self._used
        age = self.added - self._born[used]
        weights = np.maximum(np.exp2(-age / half_life_steps), 0.05)
        return self._features[used], self._seconds[used], weights

    def _write(self) -> None:
        """New rows into the arrays, all at once: one by one they cost more than the fit."""
        if not self._new:
            return
        rows = list(self._new)
        features, seconds, born = zip(*self._new.values(), strict=True)
        self._features[rows] = features
        self._seconds[rows] = seconds
        self._born[rows] = born
        self._used[rows] = True
        self._new.clear()

    def _claim(self) -> int:
        if self._vacant:
            return self._vacant.pop()
        self._write()
        _, (base, _) = self._kinds.popitem(last=False)
        self._used[base : base + self._per_kind] = False
        return base
