"""A GPU, a model on it, and how long its steps take: one profile of the simulator.

Facts and their origin; which profiles there are is in ``catalogue``.
"""

from dataclasses import dataclass

from weir_engine.config import EngineShape
from weir_engine.errors import ConfigError
from weir_engine.sim.profiles.timing import Timing

_RESERVED_BYTES = 1_700_000_000  # activations, CUDA graphs and libraries, a GPU
_BYTES_A_VALUE = 2  # bf16


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One device as its maker states it.

    ``memory_bytes`` is what the driver reports, ``flops`` dense bf16, ``pcie_bytes_s`` one way.
    """

    name: str
    memory_bytes: int
    bandwidth_bytes_s: float
    flops: float
    pcie_bytes_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """What of a model decides time and memory."""

    name: str
    layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    parameters: float

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * _BYTES_A_VALUE


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuLane:
    """Attention on host CPUs, bounded by reading the KV cache from DRAM (declared).

    ``efficiency`` is the share of the nominal bandwidth that such a scan reaches.
    """

    dram_bytes_s: float = 204.8e9
    efficiency: float = 0.8
    network_bytes_s: float = 12.5e9
    network_delay_s: float = 20e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where the numbers of one part of a profile come from.

    ``mark`` is ``measured``, ``derived`` (computed from measurements of something else) or
    ``declared`` (taken from a data sheet, or assumed).
    """

    part: str
    mark: str
    source: str
    licence: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareProfile:
    """A model on ``tensor_parallel`` x ``pipeline_parallel`` GPUs; ``origins`` say what is known.

    ``memory_utilisation`` is the share of device memory that the engine may take.
    """

    name: str
    gpu: Gpu
    model: ModelShape
    timing: Timing
    origins: tuple[Origin, ...]
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    cpu: CpuLane = CpuLane()
    memory_utilisation: float = 0.9

    @property
    def gpus(self) -> int:
        """Devices of one replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def kv_bytes(self) -> int:
        """Bytes left for KV on all GPUs of a replica, after weights and the reserve."""
        memory = self.gpus * (self.gpu.memory_bytes * self.memory_utilisation - _RESERVED_BYTES)
        return int(memory - self.model.parameters * _BYTES_A_VALUE)

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens whose KV fits beside the weights."""
        return self.kv_bytes // self.model.kv_bytes_per_token

    def engine_shape(
        self,
        *,
        max_batched_tokens: int = 2048,
        max_seqs: int = 256,
        max_model_len_tokens: int = 8192,
        block_size_tokens: int = 16,
        kv_tokens: int | None = None,
    ) -> EngineShape:
        """The engine that runs on it; ``kv_tokens`` (None: all that fit) bounds the cache.

        Raises:
            ConfigError: the model does not fit.
        """
        tokens = self.kv_capacity_tokens if kv_tokens is None else kv_tokens
        if tokens < block_size_tokens:
            raise ConfigError(
                f"profile {self.name}: {tokens} tokens of KV do not fill a block: use more GPUs or "
                "a smaller model"
            )
        return EngineShape(
            block_size_tokens=block_size_tokens,
            total_blocks=tokens // block_size_tokens,
            max_batched_tokens=max_batched_tokens,
            max_seqs=max_seqs,
            max_model_len_tokens=max_model_len_tokens,
        )

    def swap_s(self, tokens: int) -> float:
        """Seconds to move the KV of ``tokens`` one way over PCIe, all GPUs at once."""
        total = tokens * self.model.kv_bytes_per_token
        return total / (self.gpu.pcie_bytes_s * self.gpus)

    def cpu_attention_s(self, context_tokens: int, *, hosts: int = 1, layers: int = 1) -> float:
        """Seconds to read ``context_tokens`` of KV of some layers on ``hosts`` CPU hosts.

        The context is spread evenly over them; the exchange of queries and results is in
        ``cpu_exchange_s``.
        """
        a_layer = self.model.kv_bytes_per_token / self.model.layers
        bandwidth = self.cpu.dram_bytes_s * self.cpu.efficiency * hosts
        return context_tokens * a_layer * layers / bandwidth

    def cpu_exchange_s(self, sequences: int, *, remote: bool) -> float:
        """Seconds to send a layer's queries, keys and values out and its result back."""
        values = 2 * self.model.query_heads + 2 * self.model.kv_heads
        size = sequences * values * self.model.head_dim * _BYTES_A_VALUE
        if not remote:
            return size / self.gpu.pcie_bytes_s
        return 2 * self.cpu.network_delay_s + size / self.cpu.network_bytes_s
