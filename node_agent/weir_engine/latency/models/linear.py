"""Models that are linear in their features: fitted by least squares, inverted in closed form.

A model adds its features, an unrolled ``predict`` and the two terms of a prefill's cost.
"""

from abc import abstractmethod
from math import isinf, sqrt

import numpy as np
from typing_extensions import override

from weir_engine.latency.features import StepShape
from weir_engine.latency.fit import Array, fit_relative
from weir_engine.latency.models.fitted import FittedModel

_SMALLEST_FIXED_S = 1e-6
_ROUNDING = 1 - 1e-12  # so that the sum of floats stays within the limit too


class LinearModel(FittedModel):
    """A step's seconds as a sum of features times coefficients, the first for the constant 1."""

    def __init_subclass__(cls) -> None:
        cls.columns = len(cls.features_by_name)

    @abstractmethod
    def _prefill_terms(self, shape: StepShape, computed_tokens: int) -> tuple[float, float, float]:
        """(a, b, c) such that n more tokens cost a + b * n + c * n * n on top of ``shape``."""

    @abstractmethod
    def _unpack(self) -> None:
        """Copy ``_values`` into the attributes that ``predict`` reads."""

    @property
    @override
    def fixed_s(self) -> float:
        return self._values[0]

    @override
    def max_prefill_tokens(
        self, shape: StepShape, computed_tokens: int, limit_s: float, q: float, upper: int
    ) -> int:
        return self._fitting(shape, computed_tokens, limit_s, q, upper)

    def _fitting(
        self,
        shape: StepShape,
        computed_tokens: int,
        limit_s: float,
        q: float,
        upper: int,
        besides_s: tuple[float, float] = (0.0, 0.0),
    ) -> int:
        """``max_prefill_tokens`` where any new token costs so much more, and each of them."""
        if upper < 1 or limit_s <= 0:
            return 0
        base_s = self.predict(shape) if not shape.is_empty else self._values[0]
        fixed, linear, square = self._prefill_terms(shape, computed_tokens)
        room_s = self._quantiles.within(limit_s, q) * _ROUNDING - base_s - fixed - besides_s[0]
        if room_s <= 0:
            return 0
        if isinf(room_s):
            return upper
        linear += besides_s[1]
        # The root of square n² + linear n = room in the form that does not cancel.
        slope = linear + sqrt(linear * linear + 4 * square * room_s)
        if 2 * room_s >= upper * slope:
            return upper
        return int(2 * room_s / slope)

    @override
    def _fit(self, rows: Array, seconds: Array, weights: Array) -> Array:
        return fit_relative(rows, seconds, weights, self._prior, last=np.array(self._values))

    @override
    def _load(self, values: list[float]) -> None:
        values[0] = max(values[0], _SMALLEST_FIXED_S)
        self._values = tuple(values)
        self._unpack()
