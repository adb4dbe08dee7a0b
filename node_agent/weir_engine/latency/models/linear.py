"""What all models share that are linear in their features: learning, guarding, inverting.

A model adds its features, an unrolled ``predict`` and the two terms of a prefill's cost.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import isfinite, isinf, sqrt
from typing import ClassVar, Self

import numpy as np

from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.fit import fit_relative
from weir_engine.latency.quantile import ResidualQuantiles
from weir_engine.latency.reservoir import ShapeReservoir

_HALF_LIFE_STEPS = 4096.0
_SMALLEST_FIXED_S = 1e-6
_ROUNDING = 1 - 1e-12  # so that the sum of floats stays within the limit too


class LinearModel(ABC):
    """A step's seconds as a sum of features times coefficients of 0 or more.

    ``coefficients`` (None: the class's ``defaults``) are seconds a unit of each feature, the first
    for the constant. Every few steps all are fitted again on a bounded, stratified sample of the
    measured steps: unlike recursive least squares with forgetting this cannot wind up when the
    traffic is constant, and costs the same at any age.
    """

    name: ClassVar[str]
    features_by_name: ClassVar[tuple[str, ...]]
    defaults: ClassVar[tuple[float, ...]]

    def __init__(
        self,
        coefficients: Mapping[str, float] | None = None,
        quantiles: ResidualQuantiles | None = None,
    ) -> None:
        prior = dict(zip(self.features_by_name, self.defaults, strict=True))
        for key, value in (coefficients or {}).items():
            if key not in prior or not (isfinite(value) and value >= 0):
                raise ConfigError(
                    f"latency.coefficients.{key} is {value}: give seconds of 0 or more for each of "
                    f"{', '.join(self.features_by_name)}"
                )
            prior[key] = float(value)
        self._prior = np.array([prior[key] for key in self.features_by_name])
        self._quantiles = quantiles or ResidualQuantiles()
        self._reservoir = ShapeReservoir(len(self.features_by_name))
        self._next_fit = 8
        self._values: tuple[float, ...] = ()
        self._load([prior[key] for key in self.features_by_name])

    @abstractmethod
    def features(self, shape: StepShape) -> tuple[float, ...]:
        """The features of a step that is not empty, the constant 1 first."""

    @abstractmethod
    def predict(self, shape: StepShape) -> float:
        """Median seconds of the step; 0 for an empty one."""

    @abstractmethod
    def decode_cost(self, context_tokens: int, shape: StepShape = EMPTY_SHAPE) -> float:
        """Median seconds that one more decode adds to ``shape``, ``fixed_s`` left out."""

    @abstractmethod
    def _prefill_terms(self, shape: StepShape, computed_tokens: int) -> tuple[float, float, float]:
        """(a, b, c) such that n more tokens cost a + b * n + c * n * n on top of ``shape``."""

    @abstractmethod
    def _unpack(self) -> None:
        """Copy ``_values`` into the attributes that ``predict`` reads."""

    @property
    def fixed_s(self) -> float:
        """Seconds that a step costs before its first token (c0)."""
        return self._values[0]

    @property
    def observed_steps(self) -> int:
        """Measured steps learnt from."""
        return self._reservoir.added

    @property
    def coefficients(self) -> dict[str, float]:
        """Seconds a unit of each feature."""
        return dict(zip(self.features_by_name, self._values, strict=True))

    def predict_high(self, shape: StepShape, q: float) -> float:
        """Seconds that a fraction ``q`` of such steps stay within, by the measured residuals."""
        return self._quantiles.high(self.predict(shape), q)

    def high(self, predicted_s: float, q: float) -> float:
        """``predict_high`` for a median that the caller already has."""
        return self._quantiles.high(predicted_s, q)

    def within(self, limit_s: float, q: float) -> float:
        """The largest median that stays within ``limit_s`` at ``q``."""
        return self._quantiles.within(limit_s, q)

    def marginal(self, shape: StepShape, extra: StepShape) -> float:
        """Median seconds that ``extra`` adds; a request's cost is f(B + r) - f(B)."""
        return self.predict(shape.plus(extra)) - self.predict(shape)

    def max_prefill_tokens(
        self, shape: StepShape, computed_tokens: int, limit_s: float, q: float, upper: int
    ) -> int:
        """The most new tokens, 0 to ``upper``, that keep the step within ``limit_s`` at ``q``."""
        if upper < 1 or limit_s <= 0:
            return 0
        base_s = self.predict(shape) if not shape.is_empty else self._values[0]
        fixed, linear, square = self._prefill_terms(shape, computed_tokens)
        room_s = self._quantiles.within(limit_s, q) * _ROUNDING - base_s - fixed
        if room_s <= 0:
            return 0
        if isinf(room_s):
            return upper
        # The root of square n² + linear n = room in the form that does not cancel.
        slope = linear + sqrt(linear * linear + 4 * square * room_s)
        if 2 * room_s >= upper * slope:
            return upper
        return int(2 * room_s / slope)

    def update(self, shape: StepShape, seconds: float) -> None:
        """Learn from a measured step; durations that are not positive and finite are not used."""
        if shape.is_empty or not (isfinite(seconds) and seconds > 0):
            return
        self._quantiles.add(self.predict(shape), seconds)
        self._reservoir.add(shape, self.features(shape), seconds)
        if self._reservoir.added >= self._next_fit:
            self._next_fit = self._reservoir.added + (16 if self._reservoir.added < 256 else 64)
            self.refit()

    def refit(self) -> None:
        """Fit the coefficients to the kept steps now; about a millisecond."""
        rows, seconds, weights = self._reservoir.rows(_HALF_LIFE_STEPS)
        if len(seconds):
            fitted = fit_relative(rows, seconds, weights, self._prior)
            if np.isfinite(fitted).all():
                self._load([float(value) for value in fitted])

    def state(self) -> dict[str, object]:
        """Plain data that ``from_state`` makes an equal model from, its kept steps left out."""
        return {
            "model": self.name,
            "coefficients": self.coefficients,
            "residuals": self._quantiles.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, object]) -> Self:
        """The model that ``state`` was taken from; it warms up, new steps soon outweigh it.

        Raises:
            ConfigError: another model's state, or one that is not as ``state`` gives it.
        """
        if state.get("model") != cls.name:
            raise ConfigError(
                f"latency profile is of model {state.get('model')!r}, not {cls.name!r}: profile "
                "the engine again or choose that model"
            )
        coefficients, residuals = state.get("coefficients"), state.get("residuals", {})
        if not isinstance(coefficients, Mapping) or not isinstance(residuals, Mapping):
            raise ConfigError(
                "latency profile needs 'coefficients' and 'residuals' as mappings: profile again"
            )
        try:
            numbers = {str(key): float(value) for key, value in coefficients.items()}
            ratios = {str(key): [float(r) for r in value] for key, value in residuals.items()}
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"latency profile holds no numbers ({error}): profile again"
            ) from error
        return cls(numbers, ResidualQuantiles.from_state(ratios))

    def _load(self, values: list[float]) -> None:
        values[0] = max(values[0], _SMALLEST_FIXED_S)
        self._values = tuple(values)
        self._unpack()
