"""A profile made from the recorded steps of a live engine: the simulator's truth of that engine."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from sys import float_info
from typing import Self

import numpy as np

from weir_engine.config import EngineShape
from weir_engine.errors import ConfigError
from weir_engine.latency.fit import nonnegative
from weir_engine.sim.recorded_cost import RecordedCost
from weir_engine.sim.recording import RecordedStep, Recording, engine_shape

_FORMAT = "weir-recorded-profile-4"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedProfile:
    """What the simulator needs of a recorded engine.

    Between two steps that follow each other lie ``pause_s`` and ``pause_request_s`` for each
    request of the second: a step of one decode is planned and sent sooner than one of fifty.
    """

    shape: EngineShape
    cost: RecordedCost
    pause_s: float
    pause_request_s: float

    @classmethod
    def fit(cls, recording: Recording) -> Self:
        """Fitted to a recording.

        Raises:
            ConfigError: too few steps to fit.
        """
        pause_s, pause_request_s = _pause(recording.steps)
        return cls(
            shape=recording.shape,
            cost=RecordedCost.fit(recording.steps),
            pause_s=pause_s,
            pause_request_s=pause_request_s,
        )

    def slower(self, factor: float) -> Self:
        """The same engine on a machine on which everything takes ``factor`` times as long."""
        return replace(
            self,
            cost=self.cost.slower(factor),
            pause_s=self.pause_s * factor,
            pause_request_s=self.pause_request_s * factor,
        )

    def plain(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "format": _FORMAT,
            "engine": asdict(self.shape),
            "pause_s": self.pause_s,
            "pause_request_s": self.pause_request_s,
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
        return cls(
            shape=engine_shape(plain.get("engine"), "recorded profile: engine"),
            cost=RecordedCost.of(plain),
            pause_s=_seconds(plain, "pause_s"),
            pause_request_s=_seconds(plain, "pause_request_s"),
        )


def _pause(steps: Sequence[RecordedStep]) -> tuple[float, float]:
    """Least squares of the pauses: what each has, and what a request of the step adds.

    Each counts relative to its step and the pause together: half a millisecond is a tenth of a
    lone decode and nothing of a step of fifty.
    """
    known = [
        (len(step.prefills) + len(step.decodes), step.pause_s, step.seconds + step.pause_s)
        for step in steps
        if step.pause_s is not None
    ]
    if not known:
        return 0.0, 0.0
    requests, pauses, whole = np.array(known, dtype=float).T
    features = np.stack([1 / whole, requests / whole], axis=1)
    ridge = 1e-9 * np.eye(2)  # steps of one size alone do not tell the two apart
    found = nonnegative(features.T @ features + ridge, features.T @ (pauses / whole))
    return float(found[0]), float(found[1])


def _seconds(plain: Mapping[str, object], name: str) -> float:
    """A field of a recorded profile.

    Raises:
        ConfigError: it is no time of 0 or more.
    """
    value = plain.get(name)
    if not isinstance(value, int | float) or not 0 <= value <= float_info.max:
        raise ConfigError(f"recorded profile: {name} is {value!r}: give seconds of 0 or more")
    return float(value)
