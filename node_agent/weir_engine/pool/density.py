"""Compute density of requests: time of compute-bound work over time of memory-bound work.

Arithmetic on lengths and on a device's peaks, for single numbers and for arrays alike.
"""

from dataclasses import dataclass
from math import inf
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from weir_engine.errors import ConfigError

Tokens = TypeVar("Tokens", float, NDArray[np.float64])

_KEY_AND_VALUE = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class DensityModel:
    """A model on a device, as far as compute density depends on it.

    ``parameters`` P_model; ``hidden`` H, the width of the model; ``kv_features`` H_kv, KV heads
    times head dimension (1,024 for Llama-3.1-8B); ``layers`` L. ``flops_s`` and
    ``bandwidth_bytes_s`` are the device's peaks, ``element_bytes`` the size of a stored number.

    Raises:
        ConfigError: a value that is not above 0.

    Source: BlendServe §2.3. Read as reproduction notes have it: H_kv is a layer's KV width, keys
    and values each.
    """

    parameters: float
    hidden: int
    kv_features: int
    layers: int
    flops_s: float
    bandwidth_bytes_s: float
    element_bytes: int = 2

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"density.{name} is {getattr(self, name)}: give more than 0")

    @property
    def kv_bytes_a_token(self) -> int:
        """Bytes of KV that one token keeps, over all layers."""
        return self.kv_features * self.layers * _KEY_AND_VALUE * self.element_bytes

    def span_compute_s(self, start_tokens: Tokens, end_tokens: Tokens) -> Tokens:
        """Compute time of the prompt tokens from ``start_tokens`` to ``end_tokens``, in seconds.

        Dense layers, and the attention of these tokens to all before them. Spans add up.
        """
        dense = (end_tokens - start_tokens) * (2 * self.parameters)
        pairs = end_tokens * end_tokens - start_tokens * start_tokens
        return (dense + pairs * (4 * self.hidden * self.layers)) / self.flops_s

    def output_compute_s(self, output_tokens: Tokens) -> Tokens:
        """Compute time of output tokens: dense layers only, in seconds."""
        return output_tokens * (2 * self.parameters / self.flops_s)

    def compute_s(self, prompt_tokens: Tokens, output_tokens: Tokens) -> Tokens:
        """Comp(r) without any sharing, in seconds."""
        nothing = prompt_tokens * 0.0
        return self.span_compute_s(nothing, prompt_tokens) + self.output_compute_s(output_tokens)

    def memory_s(self, prompt_tokens: Tokens, output_tokens: Tokens) -> Tokens:
        """Mem(r): the time to read the KV of all its decode steps, in seconds."""
        read = prompt_tokens * output_tokens + output_tokens * output_tokens * 0.5
        return read * (self.kv_bytes_a_token / self.bandwidth_bytes_s)

    def density(self, prompt_tokens: float, output_tokens: float) -> float:
        """rho(r) of one request without sharing; infinite without output."""
        memory_s = self.memory_s(prompt_tokens, output_tokens)
        return self.compute_s(prompt_tokens, output_tokens) / memory_s if memory_s > 0 else inf


LLAMA_8B_A100 = DensityModel(
    parameters=8.03e9,
    hidden=4096,
    kv_features=1024,
    layers=32,
    flops_s=312e12,
    bandwidth_bytes_s=2039e9,
)
"""Llama-3.1-8B on A100 80 GB, as in the paper. Another device scales all densities alike."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPartition:
    """How KV memory is shared between the two scanners, in the unit that was given."""

    left: float
    right: float


def partition_memory(
    total: float, *, left_density: float, right_density: float, target_density: float
) -> MemoryPartition:
    """Splits memory so that the blend of both sides has the target's compute density.

    Solves M_L + M_R = M and M_L·rho_L + M_R·rho_R = M·rho. A target outside the two densities gives
    everything to the nearer side; where both are equal each gets half.

    Source: BlendServe §3.4. The bounds are ours: near the meeting point of the scanners both
    densities lie on one side of the target, and the equations ask for less than nothing.
    """
    if left_density == right_density:
        share = 0.5
    elif inf in {left_density, right_density}:
        share = 1.0 if right_density == inf else 0.0
    else:
        share = (target_density - right_density) / (left_density - right_density)
    left = total * min(max(share, 0.0), 1.0)
    return MemoryPartition(left=left, right=total - left)


def blended_density(compute_s: float, memory_s: float) -> float:
    """Density of a set, from its sums of seconds; infinite without memory-bound work."""
    return compute_s / memory_s if memory_s > 0 else inf
