"""Measures a hardware profile module by module, as a profiler on the device would, with noise."""

import numpy as np

from weir_engine.sim.profiles import HardwareProfile, StepBatch


class ProfileProbe:
    """Implements ``ModuleProbe`` on a profile; every call draws the profile's own noise anew.

    The dense part is measured as one, embedding included, host and lm_head left out.
    """

    def __init__(self, profile: HardwareProfile, rng: np.random.Generator) -> None:
        self._timing = profile.timing
        self._rng = rng

    def dense(self, tokens: int) -> float:
        """The dense part of a step of that many tokens."""
        step = self._timing.step(StepBatch(tokens, ((tokens, 0),), 0, 0, 0, 0))
        return self._noisy(step.dense_s, step.std_s, step.sequential_s)

    def transfers(self, tokens: int) -> float:
        """All-reduces and sends of a step of that many tokens."""
        step = self._timing.step(StepBatch(tokens, ((tokens, 0),), 0, 0, 0, 0))
        return self._noisy(step.network_s, step.std_s, step.sequential_s)

    def prefill_attention(self, new_tokens: int, computed_tokens: int) -> float:
        """One prefill's attention."""
        step = self._timing.step(
            StepBatch(new_tokens, ((new_tokens, computed_tokens),), 0, 0, 0, 0)
        )
        return self._noisy(step.prefill_s, step.std_s, step.sequential_s)

    def decode_attention(
        self,
        sequences: int,
        context_tokens: int,
        beside_tokens: int,
        longest_tokens: int | None = None,
    ) -> float:
        """What decodes add to the attention of a prefill of ``beside_tokens`` (or none).

        The shortest of uneven ones is a third of their mean.
        """
        total = sequences * context_tokens
        prefills = ((beside_tokens, 0),) if beside_tokens else ()
        longest = context_tokens if longest_tokens is None else longest_tokens
        shortest = context_tokens if longest_tokens is None else max(context_tokens // 3, 1)
        batch = StepBatch(sequences + beside_tokens, prefills, sequences, total, shortest, longest)
        step = self._timing.step(batch)
        return self._noisy(step.decode_s, step.std_s, step.sequential_s)

    def _noisy(self, seconds: float, std_s: float, of_s: float) -> float:
        """Noise in proportion to the part of the step that is measured."""
        return seconds * (1 + self._draw(std_s / of_s))

    def _draw(self, std_s: float) -> float:
        return float(np.clip(self._rng.standard_normal(), -4.0, 4.0)) * std_s
