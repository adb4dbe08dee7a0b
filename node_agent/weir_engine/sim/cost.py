"""How long a step really takes in the simulator: the truth that latency models must learn.

Its form is on purpose not theirs: tile steps, a per-request attention floor, and noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


class Part(NamedTuple):
    """One request's share of a step: ``tokens`` computed on top of ``computed_tokens``.

    ``joined`` marks one that was not in the previous step's batch: its state is sent anew.
    """

    tokens: int
    computed_tokens: int
    joined: bool = False


Parts = Sequence[tuple[int, int, bool]]
"""The parts of a step; plain tuples will do, because a step makes hundreds."""


class StepCost(Protocol):
    """What the simulator asks of a cost model. Implemented by ``CostModel`` and ``ProfileCost``."""

    @property
    def empty_step_s(self) -> float:
        """What a step costs whatever is in it: the fixed cost and the smallest dense pass."""
        ...

    def work_s(self, parts: Parts) -> float:
        """Noiseless seconds without the fixed cost; of no parts: the smallest dense pass."""
        ...

    def timed(self, parts: Parts, rng: np.random.Generator) -> tuple[float, float]:
        """Seconds of a step with its noise, and ``work_s`` of the same parts.

        Draws the same number of values every time.
        """
        ...

    def seconds(self, parts: Parts, rng: np.random.Generator) -> float:
        """The first of ``timed``."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CostModel:
    """Seconds of a step, in parts.

    ``fixed_s`` c0; ``token_s`` a token through the dense layers, counted in tiles of
    ``tile_tokens``, at least ``knee_tokens`` of them (flat below: memory-bound); ``pair_s`` a
    (query, key) pair of prefill attention; ``context_s`` a token of context read by a decode;
    ``request_s`` a request in the batch; ``join_s`` one that joins. Noise: log-normal ``sigma``;
    with ``tail_chance`` the step is stretched by 1 + an exponential of mean ``tail_mean``; with
    ``hiccup_chance`` it stops for up to ``hiccup_s`` on top.
    """

    fixed_s: float
    token_s: float
    tile_tokens: int = 1
    knee_tokens: int = 0
    pair_s: float = 0.0
    context_s: float = 0.0
    request_s: float = 0.0
    join_s: float = 0.0
    sigma: float = 0.0
    tail_chance: float = 0.0
    tail_mean: float = 0.0
    hiccup_chance: float = 0.0
    hiccup_s: float = 0.0

    def work_s(self, parts: Parts) -> float:
        """Noiseless seconds without ``fixed_s``: what the parts alone add."""
        tokens, seconds = 0, 0.0
        for new, computed, joined in parts:
            tokens += new
            seconds += self.request_s + (self.join_s if joined else 0.0)
            if new == 1:
                seconds += self.context_s * computed
            else:
                seconds += self.pair_s * new * (computed + new / 2)
        tiles = -(-max(tokens, self.knee_tokens) // self.tile_tokens)
        return seconds + self.token_s * tiles * self.tile_tokens

    @property
    def empty_step_s(self) -> float:
        """What a step costs whatever is in it: c0, and the dense layers up to the knee."""
        return self.fixed_s + self.work_s(())

    def seconds(self, parts: Parts, rng: np.random.Generator) -> float:
        """Seconds of a step with its noise."""
        return self.timed(parts, rng)[0]

    def timed(self, parts: Parts, rng: np.random.Generator) -> tuple[float, float]:
        """With noise, and ``work_s``; draws the same number of values every time."""
        normal, tail, stretch, hiccup, stop = (
            float(rng.standard_normal()),
            float(rng.random()),
            float(rng.standard_exponential()),
            float(rng.random()),
            float(rng.random()),
        )
        work_s = self.work_s(parts)
        seconds = (self.fixed_s + work_s) * float(np.exp(self.sigma * normal))
        if tail < self.tail_chance:
            seconds *= 1 + self.tail_mean * stretch
        if hiccup < self.hiccup_chance:
            seconds += self.hiccup_s * stop
        return seconds, work_s


CPU_2_CORES = CostModel(
    fixed_s=7.5e-3,
    token_s=4.5e-4,
    tile_tokens=4,
    pair_s=1.3e-7,
    context_s=1.4e-6,
    request_s=1.5e-4,
    join_s=3e-4,
    sigma=0.05,
    tail_chance=0.01,
    tail_mean=0.4,
    hiccup_chance=0.001,
    hiccup_s=0.06,
)
"""A 26M-parameter Llama under vLLM's CPU build on one core (declared).

Matched to a first measurement: c0 7.5 ms; a decode over 1,500 tokens costs six prefill tokens;
full steps of 96 mixed tokens last about 60 ms; 2.3k tokens/s without and 11k with shared prefixes.
"""

GPU_LIKE = CostModel(
    fixed_s=4e-3,
    token_s=4.5e-5,
    tile_tokens=64,
    knee_tokens=192,
    pair_s=4e-10,
    context_s=6e-9,
    request_s=1e-5,
    join_s=2e-5,
    sigma=0.02,
    tail_chance=0.005,
    tail_mean=0.3,
    hiccup_chance=0.0005,
    hiccup_s=0.03,
)
"""An 8B model on a large GPU (declared): flat up to a knee, then compute-bound in tiles."""
