"""A profile made from the recorded steps of a live engine: the simulator's truth of that engine.

Rows in, a profile out; who records them, and where files are, is the caller's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Self

import numpy as np

from weir_engine.config import EngineShape
from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.fit import fit_relative
from weir_engine.latency.models.attention import AttentionModel
from weir_engine.sim.cost import Part
from weir_engine.sim.trace_rows import Row, json_rows

_FEWEST_STEPS = 30
_KEPT_RATIOS = 201
_FEATURES = AttentionModel()


_FORMAT = "weir-recorded-profile-1"
_SHAPE_FIELDS = EngineShape.__slots__


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedStep:
    """A live engine's step: (new, computed) tokens of its prefills, contexts of its decodes.

    ``pause_s`` is what lay between the step before and this one; None where the engine had been
    idle.
    """

    prefills: tuple[tuple[int, int], ...]
    decodes: tuple[int, ...]
    seconds: float
    pause_s: float | None = None

    @property
    def shape(self) -> StepShape:
        """Its sums."""
        shape = EMPTY_SHAPE
        for new_tokens, computed_tokens in self.prefills:
            shape = shape.with_prefill(new_tokens, computed_tokens)
        for context_tokens in self.decodes:
            shape = shape.with_decode(context_tokens)
        return shape


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """The steps of one engine."""

    shape: EngineShape
    steps: tuple[RecordedStep, ...]

    @classmethod
    def read(cls, lines: Iterable[str]) -> Self:
        """From what an agent writes: the engine's shape at each start, then its steps.

        A step has ``prefills`` as [new, computed], ``decodes`` as contexts, ``seconds``, and
        ``pause_s`` or null. Steps without work or without a duration are left out.

        Raises:
            ConfigError: a field is missing or of another kind (row and field are named), there is
                no shape, or it changes on the way.
        """
        shape: EngineShape | None = None
        steps = []
        for row in json_rows(lines):
            if "engine" in row:
                found = _shape(row.value("engine"), f"recording row {row.number}: engine")
                if shape is not None and found != shape:
                    raise row.error("engine", "another engine's steps: give a file of one engine")
                shape = found
                continue
            step = _step(row)
            if step.seconds > 0 and not step.shape.is_empty:
                steps.append(step)
        if shape is None:
            raise ConfigError("recording: no row has the engine's shape: record with an agent")
        return cls(shape=shape, steps=tuple(steps))


def _step(row: Row) -> RecordedStep:
    """One step of a recording.

    Raises:
        ConfigError: a field is missing or of another kind.
    """
    contexts = []
    for context in row.items("decodes"):
        if not isinstance(context, int) or context < 1:
            raise row.error("decodes", "give contexts of 1 token or more")
        contexts.append(context)
    idle = "pause_s" not in row or row.value("pause_s") is None
    return RecordedStep(
        prefills=tuple(row.pairs("prefills")),
        decodes=tuple(contexts),
        seconds=row.seconds("seconds"),
        pause_s=None if idle else row.seconds("pause_s"),
    )


def _shape(given: object, where: str) -> EngineShape:
    """An engine's shape out of a file.

    Raises:
        ConfigError: a field is missing, unknown or no whole number of 1 or more.
    """
    fields = given if isinstance(given, Mapping) else {}
    if set(fields) != set(_SHAPE_FIELDS) or not all(isinstance(n, int) for n in fields.values()):
        raise ConfigError(f"{where}: give whole numbers for {', '.join(_SHAPE_FIELDS)}")
    return EngineShape(**fields)


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
        """Seconds of a step with its noise."""
        return self.timed(parts, rng)[0]

    def timed(self, parts: Sequence[Part], rng: np.random.Generator) -> tuple[float, float]:
        """With noise, one draw a step, and ``work_s``."""
        at = float(rng.random()) * (len(self.ratios) - 1)
        i = min(int(at), len(self.ratios) - 2)
        ratio = self.ratios[i] + (self.ratios[i + 1] - self.ratios[i]) * (at - i)
        step_s = self._step_s(parts)
        return step_s * ratio, step_s - self.coefficients[0]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedProfile:
    """What the simulator needs of a recorded engine.

    ``pause_s``: mean time between two steps that follow each other.
    """

    shape: EngineShape
    cost: RecordedCost
    pause_s: float

    @classmethod
    def fit(cls, recording: Recording) -> Self:
        """Fitted to a recording.

        Raises:
            ConfigError: too few steps to fit.
        """
        pauses = [step.pause_s for step in recording.steps if step.pause_s is not None]
        return cls(
            shape=recording.shape,
            cost=RecordedCost.fit(recording.steps),
            pause_s=float(np.mean(pauses)) if pauses else 0.0,
        )

    def plain(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "format": _FORMAT,
            "engine": asdict(self.shape),
            "pause_s": self.pause_s,
            **self.cost.plain(),
        }

    @classmethod
    def of(cls, plain: object) -> Self:
        """What ``plain`` gave.

        Raises:
            ConfigError: it is no such profile, or a field of it is wrong.
        """
        if not isinstance(plain, Mapping) or plain.get("format") != _FORMAT:
            raise ConfigError(f"recorded profile: format is not {_FORMAT}: make it again")
        pause_s = plain.get("pause_s")
        if not isinstance(pause_s, int | float) or not 0 <= pause_s < inf:
            raise ConfigError(
                f"recorded profile: pause_s is {pause_s!r}: give seconds of 0 or more"
            )
        return cls(
            shape=_shape(plain.get("engine"), "recorded profile: engine"),
            cost=RecordedCost.of(plain),
            pause_s=float(pause_s),
        )
