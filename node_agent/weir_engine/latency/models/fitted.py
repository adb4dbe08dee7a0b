"""What models share that learn from measured steps: keeping them, fitting anew, guarding, saving.

A model adds its features, its ``predict`` and how it fits; none of these is in the path of a plan.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import isfinite, sqrt
from typing import ClassVar, Self

import numpy as np

from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.fit import Array
from weir_engine.latency.quantile import ResidualQuantiles
from weir_engine.latency.reservoir import ShapeReservoir

_HALF_LIFE_STEPS = 4096.0
# Until so many steps are measured a fit may know next to nothing of the next one's kind.
_YOUNG_STEPS = 256


class FittedModel(ABC):
    """A step's seconds from named coefficients of 0 or more, fitted to measured steps.

    ``coefficients`` (None: the class's ``defaults``) are seconds a unit of each. Every few steps
    all are fitted again on a bounded, stratified sample of the measured steps: unlike recursive
    least squares with forgetting this cannot wind up when the traffic is constant, and costs the
    same at any age. What steps overrun is counted by the prediction that each of them had, but for
    the first ones: by the newest fit, since the first fits are of a few steps that are all alike,
    and a step that such a fit missed twenty times over would shorten others for a minute.
    """

    name: ClassVar[str]
    features_by_name: ClassVar[tuple[str, ...]]
    defaults: ClassVar[tuple[float, ...]]
    columns: ClassVar[int]
    """How many features a step has."""

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
        self._first: list[tuple[StepShape, float]] | None = [] if quantiles is None else None
        self._reservoir = ShapeReservoir(self.columns)
        self._new: list[tuple[StepShape, float]] = []  # measured steps that no fit has seen
        self._next_fit = 8
        self._values: tuple[float, ...] = ()
        self._load([prior[key] for key in self.features_by_name])

    @abstractmethod
    def features(self, shape: StepShape) -> tuple[float, ...]:
        """What a fit sees of a step that is not empty."""

    @abstractmethod
    def predict(self, shape: StepShape) -> float:
        """Median seconds of the step; 0 for an empty one."""

    @abstractmethod
    def decode_cost(self, context_tokens: int, shape: StepShape = EMPTY_SHAPE) -> float:
        """Median seconds that one more decode adds to ``shape``, ``fixed_s`` left out."""

    @abstractmethod
    def max_prefill_tokens(
        self, shape: StepShape, computed_tokens: int, limit_s: float, q: float, upper: int
    ) -> int:
        """The most new tokens, 0 to ``upper``, that keep the step within ``limit_s`` at ``q``."""

    @abstractmethod
    def _fit(self, rows: Array, seconds: Array, weights: Array) -> Array:
        """The coefficients that fit the kept steps best."""

    @abstractmethod
    def _load(self, values: list[float]) -> None:
        """Take coefficients, in the order of ``features_by_name``."""

    @property
    @abstractmethod
    def fixed_s(self) -> float:
        """Seconds that a step costs before its first token (c0)."""

    @property
    def graph_tokens(self) -> int:
        """Tokens of the largest step that the engine has a CUDA graph for; 0: no such bound."""
        return 0

    def beyond_graphs_s(self, tokens: int) -> float:  # noqa: ARG002
        """Seconds that a step of so many tokens costs for being larger than that."""
        return 0.0

    def mixed_s(self, decodes: StepShape) -> float:  # noqa: ARG002
        """Seconds that these decodes take longer for a prompt beside them."""
        return 0.0

    @property
    def observed_steps(self) -> int:
        """Measured steps learnt from."""
        return self._reservoir.added + len(self._new)

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

    def update(self, shape: StepShape, seconds: float) -> None:
        """Learn from a measured step; durations that are not positive and finite are not used."""
        if shape.is_empty or not (isfinite(seconds) and seconds > 0):
            return
        self._quantiles.add(self.predict(shape), seconds)
        self._new.append((shape, seconds))
        if self._first is not None:
            self._first.append((shape, seconds))
        observed = self.observed_steps
        if observed >= self._next_fit:
            self._next_fit = observed + (16 if observed < _YOUNG_STEPS else 64)
            self.refit()

    def refit(self) -> None:
        """Fit the coefficients to the kept steps now; about a millisecond."""
        for shape, seconds_of_it in self._new:
            self._reservoir.add(shape, self.features(shape), seconds_of_it)
        self._new.clear()
        rows, seconds, weights = self._reservoir.rows(_HALF_LIFE_STEPS)
        if len(seconds):
            fitted = self._fit(rows, seconds, weights)
            if np.isfinite(fitted).all():
                self._load([float(value) for value in fitted])
        if self._first is not None:
            self._count_anew(self._first)

    def _count_anew(self, first: list[tuple[StepShape, float]]) -> None:
        """What the first steps overran, by the fit that there is now.

        That has been made of them: with n steps and k coefficients it misses the next ones by
        sqrt(n / (n - k)) times as much.
        """
        self._quantiles = ResidualQuantiles()
        steps = len(first)
        wider = sqrt(steps / max(1, steps - len(self.features_by_name)))
        for shape, seconds in first:
            predicted_s = self.predict(shape)
            self._quantiles.add(predicted_s, predicted_s + wider * (seconds - predicted_s))
        if steps >= _YOUNG_STEPS:
            self._first = None

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
        return cls(*saved_parts(state, cls.name))


def saved_parts(
    state: Mapping[str, object], name: str
) -> tuple[dict[str, float], ResidualQuantiles]:
    """Coefficients and residuals of a saved model of that name.

    Raises:
        ConfigError: another model's state, or one that is not as ``state`` gives it.
    """
    if state.get("model") != name:
        raise ConfigError(
            f"latency profile is of model {state.get('model')!r}, not {name!r}: profile "
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
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"latency profile holds no numbers ({error}): profile again") from error
    return numbers, ResidualQuantiles.from_state(ratios)
