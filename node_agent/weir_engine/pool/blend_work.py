"""What batch requests take of the two lanes of a step, and what is left of a batch for each.

Lane: the compute-bound and the memory-bound work of a step, which may run at once. Arithmetic
only; who is next is ``paced_blend``'s part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from weir_engine.pool.density import DensityModel, Tokens


def context_read_tokens(prompt_tokens: Tokens, decode_steps: Tokens) -> Tokens:
    """Tokens of context that all decodes of a request read; it grows by a token a step."""
    return (prompt_tokens + decode_steps * 0.5) * decode_steps


class Scan(StrEnum):
    """Where in the density order a request was taken from."""

    COMPUTE = "compute"
    """The end that computes most and holds least."""
    CENTRE = "centre"
    """The least dense of the compute-bound part, from there towards the compute end."""
    MEMORY = "memory"
    """The end of the long outputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlendWork:
    """What a request is expected to take of each lane.

    ``compute_s``: its part of the compute-bound work, in seconds. ``prompt_tokens``: its context
    when it begins to decode. ``decode_steps``: steps in which it decodes; the first output token
    comes with the prompt's last.
    """

    scan: Scan
    compute_s: float
    prompt_tokens: float
    decode_steps: float

    @property
    def read_tokens(self) -> float:
        """Tokens of context that all its decodes read."""
        return context_read_tokens(self.prompt_tokens, self.decode_steps)

    @property
    def held_tokens(self) -> float:
        """Tokens of context read in a step on average, over the steps that it is there."""
        return self.read_tokens / (self.decode_steps + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLane:
    """Seconds that a step reads: the weights, and each token of context of its decodes."""

    weights_s: float
    token_s: float

    @classmethod
    def of(cls, model: DensityModel) -> "MemoryLane":
        """A device's, at its peak bandwidth, as compute densities are."""
        return cls(
            weights_s=model.parameters * model.element_bytes / model.bandwidth_bytes_s,
            token_s=model.kv_bytes_a_token / model.bandwidth_bytes_s,
        )

    def seconds(self, steps: float, read_tokens: float) -> float:
        """Of so many steps that read so many tokens of context in all."""
        return steps * self.weights_s + read_tokens * self.token_s


@dataclass(kw_only=True, slots=True)
class Ahead:
    """Work of the batch that is not admitted yet, whether it waits in the pool or not.

    ``compute_s``: of all requests, in seconds. ``compute_side_tokens`` and ``memory_side_tokens``:
    context that the decodes of either side will read, see ``BlendWork.read_tokens``.
    """

    compute_s: float
    compute_side_tokens: float
    memory_side_tokens: float

    def admitted(self, hint: BlendWork) -> None:
        """One of them was admitted."""
        self.compute_s = max(self.compute_s - hint.compute_s, 0.0)
        if hint.scan is Scan.MEMORY:
            self.memory_side_tokens = max(self.memory_side_tokens - hint.read_tokens, 0.0)
        else:
            self.compute_side_tokens = max(self.compute_side_tokens - hint.read_tokens, 0.0)


def fitting_steps(growing: Sequence[tuple[float, float]], room_tokens: float) -> float:
    """The most steps that one more output may grow for, from nothing, within the room.

    ``growing``: remaining steps and context now of those that run, by steps; each grows by a token
    a step and gives its context back when it ends. At no step is more held than ``room_tokens``.
    """
    held, at, count = sum(context for _, context in growing), 0.0, len(growing)
    for steps, context in growing:
        end = held + count * (steps - at)
        if end + steps > room_tokens:
            break
        held, at, count = end - (context + steps), steps, count - 1
    return max(at + (room_tokens - held - at) / (count + 1), 0.0)
