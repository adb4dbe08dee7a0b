"""A profile made from the recorded steps of a live engine: the simulator's truth of that engine.

Rows in, a profile out; who records them, and where files are, is the caller's.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from typing import Self

import numpy as np

from weir_engine.config import EngineShape
from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.fit import Array, fit_relative
from weir_engine.latency.models.attention import AttentionModel
from weir_engine.sim.cost import Parts
from weir_engine.sim.trace_rows import Row, json_rows

_FEWEST_STEPS = 30
_KEPT_RATIOS = 101
_STEPS_A_SIZE = 100  # fewer do not show the tail of their noise
_FEATURES = AttentionModel()


_FORMAT = "weir-recorded-profile-2"
_SHAPE_FIELDS = tuple(each.name for each in fields(EngineShape))


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
class NoiseOfSize:
    """How measured steps of one size spread about their fitted time.

    ``upto_s`` is the longest fitted time of the size; ``ratios`` are quantiles of measured over
    fitted, evenly spaced, stalls included.
    """

    upto_s: float
    ratios: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCost:
    """Seconds of a step of an engine that was recorded; implements ``StepCost``.

    ``coefficients`` are seconds a unit of the features of ``AttentionModel``. Noise is drawn from
    ``noise``, by size from short to long: short steps spread wider than long ones, and a scheduler
    that learns the spread leaves as much room as it sees. Beyond the last size that one holds.
    """

    coefficients: tuple[float, ...]
    noise: tuple[NoiseOfSize, ...]

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
        return cls(
            coefficients=tuple(float(value) for value in found),
            noise=_noise(features @ found, seconds),
        )

    @property
    def empty_step_s(self) -> float:
        """What a step costs whatever is in it."""
        return self.coefficients[0]

    def work_s(self, parts: Parts) -> float:
        """Noiseless seconds without the fixed cost."""
        return self._step_s(parts) - self.coefficients[0]

    def seconds(self, parts: Parts, rng: np.random.Generator) -> float:
        """Seconds of a step with its noise."""
        return self.timed(parts, rng)[0]

    def timed(self, parts: Parts, rng: np.random.Generator) -> tuple[float, float]:
        """With noise, one draw a step, and ``work_s``."""
        step_s = self._step_s(parts)
        size = min(bisect_left(self.noise, step_s, key=_upto_s), len(self.noise) - 1)
        ratios = self.noise[size].ratios
        at = float(rng.random()) * (len(ratios) - 1)
        i = min(int(at), len(ratios) - 2)
        ratio = ratios[i] + (ratios[i + 1] - ratios[i]) * (at - i)
        return step_s * ratio, step_s - self.coefficients[0]

    def error(self, steps: Sequence[RecordedStep]) -> float:
        """Mean absolute relative error over recorded steps, for instance of another trace."""
        errors = [abs(self._shape_s(step.shape) / step.seconds - 1) for step in steps]
        return sum(errors) / len(errors)

    def slowness(self, steps: Sequence[RecordedStep]) -> float:
        """Median of measured over fitted: how much slower the machine was that ran ``steps``."""
        return float(np.median([step.seconds / self._shape_s(step.shape) for step in steps]))

    def slower(self, factor: float) -> Self:
        """The same engine on a machine on which every step takes ``factor`` times as long."""
        return replace(
            self,
            coefficients=tuple(factor * value for value in self.coefficients),
            noise=tuple(replace(size, upto_s=factor * size.upto_s) for size in self.noise),
        )

    def plain(self) -> dict[str, object]:
        """As lists, for a file."""
        return {
            "coefficients": list(self.coefficients),
            "noise": [{"upto_s": s.upto_s, "ratios": list(s.ratios)} for s in self.noise],
        }

    @classmethod
    def of(cls, plain: Mapping[str, object]) -> Self:
        """What ``plain`` gave.

        Raises:
            ConfigError: a list is missing, too short or no numbers.
        """
        sizes = plain.get("noise")
        rows = sizes if isinstance(sizes, list) else []
        if not rows or not all(isinstance(row, Mapping) for row in rows):
            raise ConfigError("recorded profile: noise must be a list of sizes: record it again")
        return cls(
            coefficients=_numbers(plain, "coefficients", len(_FEATURES.defaults)),
            noise=tuple(
                NoiseOfSize(
                    upto_s=_numbers({"upto_s": [row.get("upto_s")]}, "upto_s", 1)[0],
                    ratios=_numbers(row, "ratios", 2),
                )
                for row in rows
            ),
        )

    def _step_s(self, parts: Parts) -> float:
        shape = EMPTY_SHAPE
        for tokens, computed, _ in parts:
            if tokens == 1:
                shape = shape.with_decode(computed + 1)
            else:
                shape = shape.with_prefill(tokens, computed)
        return self._shape_s(shape)

    def _shape_s(self, shape: StepShape) -> float:
        if shape.is_empty:
            return self.coefficients[0]
        pairs = zip(self.coefficients, _FEATURES.features(shape), strict=True)
        return sum(coefficient * feature for coefficient, feature in pairs)


def _upto_s(size: NoiseOfSize) -> float:
    return size.upto_s


def _noise(fitted_s: Array, seconds: Array) -> tuple[NoiseOfSize, ...]:
    """By size, each with about as many steps; shapes (steps,)."""
    order = np.argsort(fitted_s)
    sizes = np.array_split(order, max(1, len(order) // _STEPS_A_SIZE))
    at = np.linspace(0, 1, _KEPT_RATIOS)
    return tuple(
        NoiseOfSize(
            upto_s=float(fitted_s[size[-1]]),
            ratios=tuple(float(r) for r in np.quantile(seconds[size] / fitted_s[size], at)),
        )
        for size in sizes
    )


def _numbers(plain: Mapping[str, object], name: str, fewest: int) -> tuple[float, ...]:
    """A list of a recorded profile.

    Raises:
        ConfigError: it is missing, too short or no numbers.
    """
    values = plain.get(name)
    found = values if isinstance(values, list) else []
    numbers = [float(value) for value in found if isinstance(value, int | float)]
    if not fewest <= len(numbers) == len(found):
        raise ConfigError(
            f"recorded profile: {name} must be {fewest} numbers or more: record it again"
        )
    return tuple(numbers)


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
