"""What a step costs on a hardware profile: kernel after kernel, or memory beside compute.

The truth in a simulation of that hardware; never the model that the scheduler plans with.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from weir_engine.errors import ConfigError
from weir_engine.sim.cost import Parts
from weir_engine.sim.profiles import HardwareProfile, StepBatch, StepTime

_LONGEST_DRAW = 4.0  # standard deviations: no kernel ever ran in negative time


class Backend(StrEnum):
    """How an engine runs the kernels of a step."""

    SEQUENTIAL = "sequential"
    OVERLAPPED = "overlapped"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interference:
    """How much longer kernels take that share a GPU (declared; its sensitivity is reported).

    With r the overlapped time over the longer lane, 0 to 1, the longer lane takes
    1 + ``linear`` * r + ``square`` * r * r times as long; never longer than one after the other.

    Source: the form is BlendServe §5.2's "polynomial fitting"; its coefficients are not published.
    """

    linear: float = 0.1
    square: float = 0.1

    def __post_init__(self) -> None:
        if self.linear < 0 or self.square < 0:
            raise ConfigError(
                f"interference is {self.linear} and {self.square}: give coefficients of 0 or more"
            )

    def together_s(self, compute_s: float, memory_s: float, whole_s: float) -> float:
        """Two lanes at once, that take ``whole_s`` one after the other."""
        longer = max(compute_s, memory_s)
        share = min(max(whole_s - longer, 0.0) / longer, 1.0)
        return min(longer * (1 + share * (self.linear + self.square * share)), whole_s)


def batch_of(parts: Parts) -> StepBatch:
    """The counts of a step. A part of one token is a decode: it reads its whole context."""
    held = [done for n, done, _ in parts if n == 1]
    tokens = decodes = len(held)
    prefills: list[tuple[int, int]] = []
    if decodes < len(parts):
        prefills = [(n, done) for n, done, _ in parts if n != 1]
        tokens += sum(n for n, _ in prefills)
    if not decodes:
        return StepBatch(tokens, prefills, 0, 0, 0, 0)
    # A decode also attends to the token that it computes.
    return StepBatch(tokens, prefills, decodes, sum(held) + decodes, min(held) + 1, max(held) + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileCost:
    """Seconds of a step on ``profile``; implements ``StepCost``.

    ``overlapped``: attention of the decodes runs beside the dense layers and the prefills. Reading
    the weights is on the memory lane too, so that a small batch gains nothing. ``noise_scale``
    multiplies the profile's own standard deviation; 0 switches noise off.
    """

    profile: HardwareProfile
    backend: Backend = Backend.SEQUENTIAL
    interference: Interference = Interference()
    noise_scale: float = 1.0
    _empty: StepTime = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_empty", self.profile.timing.step(batch_of(())))

    @property
    def empty_step_s(self) -> float:
        """What a step costs whatever is in it: host, reading the weights, one sequence's head."""
        return self._empty.sequential_s

    def work_s(self, parts: Parts) -> float:
        """Noiseless seconds without the host's fixed cost."""
        return self.step_s(batch_of(parts)) - self._empty.fixed_s

    def step_s(self, batch: StepBatch) -> float:
        """Noiseless seconds of a whole step."""
        return self.total_s(self.profile.timing.step(batch))

    def seconds(self, parts: Parts, rng: np.random.Generator) -> float:
        """Seconds of a step with its noise."""
        return self.timed(parts, rng)[0]

    def timed(self, parts: Parts, rng: np.random.Generator) -> tuple[float, float]:
        """With noise, one draw a step that its layers share, and ``work_s``."""
        draw = min(max(float(rng.standard_normal()), -_LONGEST_DRAW), _LONGEST_DRAW)
        time = self.profile.timing.step(batch_of(parts))
        total_s = self.total_s(time)
        seconds = max(total_s + self.noise_scale * draw * time.std_s, 0.5 * total_s)
        return seconds, total_s - self._empty.fixed_s

    def total_s(self, time: StepTime) -> float:
        """Seconds of a whole step from its parts, as this backend runs them."""
        if self.backend is Backend.SEQUENTIAL:
            return time.sequential_s
        compute_s = time.dense_s + time.prefill_s
        whole_s = compute_s + time.decode_s
        together_s = self.interference.together_s(
            compute_s, time.weights_s + time.decode_s, whole_s
        )
        return time.fixed_s + together_s + time.head_s + time.network_s
