"""A cost model made from the recorded steps of a live engine: the simulator's truth of that engine.

Rows in, a cost out; who records them, and where files are, is the caller's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.fit import fit_relative
from weir_engine.latency.models.attention import AttentionModel
from weir_engine.sim.cost import Part
from weir_engine.sim.trace_rows import json_rows

_FEWEST_STEPS = 30
_KEPT_RATIOS = 201
_FEATURES = AttentionModel()


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedStep:
    """A live engine's step: (new, computed) tokens of its prefills, contexts of its decodes."""

    prefills: tuple[tuple[int, int], ...]
    decodes: tuple[int, ...]
    seconds: float

    @property
    def shape(self) -> StepShape:
        """Its sums."""
        shape = EMPTY_SHAPE
        for new_tokens, computed_tokens in self.prefills:
            shape = shape.with_prefill(new_tokens, computed_tokens)
        for context_tokens in self.decodes:
            shape = shape.with_decode(context_tokens)
        return shape


def recorded_steps(lines: Iterable[str]) -> tuple[RecordedStep, ...]:
    """From JSONL: ``prefills`` as [new, computed], ``decodes`` as contexts, ``seconds``.

    Steps without work or without a duration are left out.

    Raises:
        ConfigError: a field is missing or of another kind; row and field are named.
    """
    made = []
    for row in json_rows(lines):
        contexts = []
        for context in row.items("decodes"):
            if not isinstance(context, int) or context < 1:
                raise row.error("decodes", "give contexts of 1 token or more")
            contexts.append(context)
        step = RecordedStep(
            prefills=tuple(row.pairs("prefills")),
            decodes=tuple(contexts),
            seconds=row.seconds("seconds"),
        )
        if step.seconds > 0 and not step.shape.is_empty:
            made.append(step)
    return tuple(made)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCost:
    """Seconds of a step of an engine that was recorded; implements ``StepCost``.

    ``coefficients`` are seconds a unit of the features of ``AttentionModel``; ``ratios`` are
    quantiles of measured over fitted, evenly spaced: noise is drawn from them, stalls included.
    """

    coefficients: tuple[float, ...]
    ratios: tuple[float, ...]

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
        features = np.array([_FEATURES.features(step.shape) for step in steps])
        seconds = np.array([step.seconds for step in steps])
        prior = np.array(_FEATURES.defaults)
        found = fit_relative(features, seconds, np.ones(len(steps)), prior)
        ratios = np.quantile(seconds / (features @ found), np.linspace(0, 1, _KEPT_RATIOS))
        return cls(
            coefficients=tuple(float(value) for value in found),
            ratios=tuple(float(value) for value in ratios),
        )

    @property
    def empty_step_s(self) -> float:
        """What a step costs whatever is in it."""
        return self.coefficients[0]

    def work_s(self, parts: Sequence[Part]) -> float:
        """Noiseless seconds without the fixed cost."""
        return self._step_s(parts) - self.coefficients[0]

    def seconds(self, parts: Sequence[Part], rng: np.random.Generator) -> float:
        """Seconds of a step with its noise: one draw."""
        at = float(rng.random()) * (len(self.ratios) - 1)
        i = min(int(at), len(self.ratios) - 2)
        ratio = self.ratios[i] + (self.ratios[i + 1] - self.ratios[i]) * (at - i)
        return self._step_s(parts) * ratio

    def error(self, steps: Sequence[RecordedStep]) -> float:
        """Mean absolute relative error over recorded steps, for instance of another trace."""
        errors = [abs(self._shape_s(step.shape) / step.seconds - 1) for step in steps]
        return sum(errors) / len(errors)

    def plain(self) -> dict[str, list[float]]:
        """As lists, for a file."""
        return {"coefficients": list(self.coefficients), "ratios": list(self.ratios)}

    @classmethod
    def of(cls, plain: Mapping[str, object]) -> Self:
        """What ``plain`` gave.

        Raises:
            ConfigError: a list is missing, too short or no numbers.
        """
        made: dict[str, tuple[float, ...]] = {}
        for name, shortest in (("coefficients", len(_FEATURES.defaults)), ("ratios", 2)):
            values = plain.get(name)
            numbers = [
                float(value)
                for value in (values if isinstance(values, list) else ())
                if isinstance(value, int | float)
            ]
            if not isinstance(values, list) or not shortest <= len(numbers) == len(values):
                raise ConfigError(
                    f"recorded profile: {name} must be {shortest} numbers or more: record it again"
                )
            made[name] = tuple(numbers)
        return cls(coefficients=made["coefficients"], ratios=made["ratios"])

    def _step_s(self, parts: Sequence[Part]) -> float:
        shape = EMPTY_SHAPE
        for part in parts:
            if part.tokens == 1:
                shape = shape.with_decode(part.computed_tokens + 1)
            else:
                shape = shape.with_prefill(part.tokens, part.computed_tokens)
        return self._shape_s(shape)

    def _shape_s(self, shape: StepShape) -> float:
        if shape.is_empty:
            return self.coefficients[0]
        pairs = zip(self.coefficients, _FEATURES.features(shape), strict=True)
        return sum(coefficient * feature for coefficient, feature in pairs)
