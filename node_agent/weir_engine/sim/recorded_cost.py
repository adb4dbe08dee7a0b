"""What a step of a recorded engine costs, fitted to its steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.fit import fit_relative
from weir_engine.latency.models.attention import AttentionModel
from weir_engine.sim.cost import Parts
from weir_engine.sim.recorded_noise import RecordedNoise, numbers_of
from weir_engine.sim.recording import RecordedStep

_FEWEST_STEPS = 30
_FEATURES = AttentionModel()
# Without the price of decodes beside a prompt: profiles that were recorded have none.
_COUNTED = len(_FEATURES.defaults) - 1
_PRIOR = (*_FEATURES.defaults[:_COUNTED], _FEATURES.defaults[_COUNTED - 1], 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCost:
    """Seconds of a step of an engine that was recorded; implements ``StepCost``.

    ``coefficients`` are seconds a unit of the features of ``AttentionModel``, then of the computed
    tokens that the step reads, shared ones once: memory is read once for a prefix that many
    requests have, and again for each where they have none. The last one is what a step takes
    longer right after one with a prefill, whose activations have pushed the weights out of the
    caches: little of a long step, a fifth of a decode's.
    """

    coefficients: tuple[float, ...]
    noise: RecordedNoise

    @classmethod
    def fit(cls, steps: Sequence[RecordedStep]) -> Self:
        """Fitted to recorded steps.

        Raises:
            ConfigError: too few steps to fit.
        """
        if len(steps) < _FEWEST_STEPS:
            raise ConfigError(
                f"{len(steps)} steps were recorded: record {_FEWEST_STEPS} or more with work"
            )
        features = np.array([_features_of(step) for step in steps])
        seconds = np.array([step.seconds for step in steps])
        prior = np.array(_PRIOR)
        found = fit_relative(features, seconds, np.ones(len(steps)), prior)
        return cls(
            coefficients=tuple(float(value) for value in found),
            noise=RecordedNoise.fit(features @ found, seconds),
        )

    @property
    def empty_step_s(self) -> float:
        """What a step costs whatever is in it."""
        return self.coefficients[0]

    def work_s(self, parts: Parts) -> float:
        """Noiseless seconds without the fixed cost, nothing shared."""
        return self._parts_s(parts) - self.coefficients[0]

    def seconds(self, parts: Parts, rng: np.random.Generator) -> float:
        """Seconds of a step with its noise."""
        return self.timed(parts, rng)[0]

    def timed(self, parts: Parts, rng: np.random.Generator) -> tuple[float, float]:
        """With noise, one draw a step, and ``work_s``; nothing shared, nothing in order."""
        step_s = self._parts_s(parts)
        ratio = self.noise.ratio(step_s, float(rng.random()))
        return step_s * ratio, step_s - self.coefficients[0]

    def in_order(self, rng: np.random.Generator) -> "RecordedRun":
        """The steps of one run: noise in the recorded order, from a step that is drawn."""
        return RecordedRun(self, first=int(rng.integers(len(self.noise.ranks))))

    def step_s(self, parts: Parts, distinct_tokens: int, *, after_prefill: bool = False) -> float:
        """Noiseless seconds of parts that read so many computed tokens, shared ones once."""
        return self.shape_s(_shape_of(parts), distinct_tokens, after_prefill=after_prefill)

    def error(self, steps: Sequence[RecordedStep]) -> float:
        """Mean absolute relative error over recorded steps, for instance of another trace."""
        errors = [abs(self._recorded_s(step) / step.seconds - 1) for step in steps]
        return sum(errors) / len(errors)

    def slowness(self, steps: Sequence[RecordedStep]) -> float:
        """Median of measured over fitted: how much slower the machine was that ran ``steps``."""
        return float(np.median([step.seconds / self._recorded_s(step) for step in steps]))

    def slower(self, factor: float) -> Self:
        """The same engine on a machine on which every step takes ``factor`` times as long."""
        return replace(
            self,
            coefficients=tuple(factor * value for value in self.coefficients),
            noise=self.noise.slower(factor),
        )

    def plain(self) -> dict[str, object]:
        """As lists, for a file."""
        return {"coefficients": list(self.coefficients), **self.noise.plain()}

    @classmethod
    def of(cls, plain: Mapping[str, object]) -> Self:
        """What ``plain`` gave.

        Raises:
            ConfigError: a list is missing, too short or no numbers, or steps take no time.
        """
        coefficients = numbers_of(plain, "coefficients", len(_PRIOR))
        if not any(coefficients):
            raise ConfigError("recorded profile: coefficients are all 0: record it again")
        return cls(
            coefficients=coefficients,
            noise=RecordedNoise.of(plain),
        )

    def shape_s(self, shape: StepShape, distinct_tokens: int, *, after_prefill: bool) -> float:
        """The same for sums of parts."""
        if shape.is_empty:
            return self.coefficients[0]
        features = _features(shape, distinct_tokens, after_prefill=after_prefill)
        pairs = zip(self.coefficients, features, strict=True)
        return sum(coefficient * feature for coefficient, feature in pairs)

    def _recorded_s(self, step: RecordedStep) -> float:
        return sum(c * x for c, x in zip(self.coefficients, _features_of(step), strict=True))

    def _parts_s(self, parts: Parts) -> float:
        return self.step_s(parts, sum(computed for _, computed, _ in parts))


class RecordedRun:
    """One run of a recorded engine. After the last recorded step the first one's noise follows."""

    def __init__(self, cost: RecordedCost, *, first: int) -> None:
        self._cost = cost
        self._next = first
        self._prefilled = False

    def timed(self, parts: Parts, distinct_tokens: int) -> tuple[float, float]:
        """The next step's seconds with its noise, and ``work_s``; see ``RecordedCost.step_s``."""
        noise, shape = self._cost.noise, _shape_of(parts)
        step_s = self._cost.shape_s(shape, distinct_tokens, after_prefill=self._prefilled)
        ratio = noise.ratio(step_s, noise.ranks[self._next])
        self._next = (self._next + 1) % len(noise.ranks)
        self._prefilled = shape.prefill_requests > 0
        return step_s * ratio, step_s - self._cost.empty_step_s


def _features(shape: StepShape, distinct_tokens: int, *, after_prefill: bool) -> tuple[float, ...]:
    return (*_FEATURES.features(shape)[:_COUNTED], float(distinct_tokens), float(after_prefill))


def _features_of(step: RecordedStep) -> tuple[float, ...]:
    return _features(step.shape, step.distinct_tokens, after_prefill=step.after_prefill)


def _shape_of(parts: Parts) -> StepShape:
    shape = EMPTY_SHAPE
    for tokens, computed, _ in parts:
        if tokens == 1:
            shape = shape.with_decode(computed + 1)
        else:
            shape = shape.with_prefill(tokens, computed)
    return shape
