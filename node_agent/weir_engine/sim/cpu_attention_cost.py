"""A baseline's engine: attention of all decodes on host CPUs, in step with the GPU."""

from dataclasses import dataclass

import numpy as np

from weir_engine.sim.cost import Parts
from weir_engine.sim.profile_cost import batch_of
from weir_engine.sim.profiles import HardwareProfile, StepBatch, StepTime

_LONGEST_DRAW = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuAttentionCost:
    """Seconds of a step in two micro-batches: one on the CPUs while the GPU does the other.

    Implements ``StepCost``. The GPU runs the dense modules of both halves one after the other and
    reads the weights twice; ``hosts`` CPU hosts read the KV of all decodes, online ones included,
    and exchange queries and results layer by layer. The step takes the longer of the two lanes.
    With no decode there is one batch on the GPU.

    Source: NEO as OmniServe §5.1.3 (baseline B) describes it.
    """

    profile: HardwareProfile
    hosts: int = 1

    @property
    def empty_step_s(self) -> float:
        """What a step costs whatever is in it."""
        return self.profile.timing.step(batch_of(())).sequential_s

    def work_s(self, parts: Parts) -> float:
        """Noiseless seconds without the host's fixed cost."""
        batch = batch_of(parts)
        return self._total_s(batch, self.profile.timing.step(batch)) - self._fixed_s()

    def seconds(self, parts: Parts, rng: np.random.Generator) -> float:
        """Seconds of a step with its noise."""
        return self.timed(parts, rng)[0]

    def timed(self, parts: Parts, rng: np.random.Generator) -> tuple[float, float]:
        """With noise, one draw a step, and ``work_s``."""
        draw = min(max(float(rng.standard_normal()), -_LONGEST_DRAW), _LONGEST_DRAW)
        batch = batch_of(parts)
        time = self.profile.timing.step(batch)
        total_s = self._total_s(batch, time)
        return max(total_s + draw * time.std_s, 0.5 * total_s), total_s - self._fixed_s()

    def cpu_s(self, decodes: int, context_tokens: int) -> float:
        """The CPU lane of a step."""
        layers = self.profile.model.layers
        read_s = self.profile.cpu_attention_s(context_tokens, hosts=self.hosts, layers=layers)
        each = -(-decodes // self.hosts)
        return read_s + layers * self.profile.cpu_exchange_s(each, remote=self.hosts > 1)

    def _fixed_s(self) -> float:
        return self.profile.timing.step(batch_of(())).fixed_s

    def _total_s(self, batch: StepBatch, time: StepTime) -> float:
        if not batch.decodes:
            return time.sequential_s
        half = self.profile.timing.step(StepBatch(max(batch.tokens // 2, 1), (), 0, 0, 0, 0))
        gpu_s = 2 * (half.dense_s + half.network_s) + time.prefill_s + time.head_s
        return time.fixed_s + max(gpu_s, self.cpu_s(batch.decodes, batch.context_tokens))
