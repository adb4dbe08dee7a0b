"""Seconds of a step on one kind of hardware, by what limits them. Tables in, seconds out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import NamedTuple, Protocol

from weir_engine.sim.profiles.attention import Attention, StepBatch
from weir_engine.sim.profiles.data import CoefficientData
from weir_engine.sim.profiles.tables import DenseTables, StepTable


class StepTime(NamedTuple):
    """Seconds of one step without noise, and the standard deviation that was measured.

    ``weights_s`` is the part of ``dense_s`` that reads the weights whatever the number of tokens;
    ``prefill_s`` and ``decode_s`` are attention, ``head_s`` what each sequence costs at the end.
    """

    fixed_s: float
    dense_s: float
    weights_s: float
    prefill_s: float
    decode_s: float
    head_s: float
    network_s: float
    std_s: float

    @property
    def sequential_s(self) -> float:
        """One kernel after the other, as vLLM and SGLang run."""
        return (
            self.fixed_s
            + self.dense_s
            + self.prefill_s
            + self.decode_s
            + self.head_s
            + self.network_s
        )


class Timing(Protocol):
    """What a profile knows about a step."""

    def step(self, batch: StepBatch) -> StepTime:
        """The time of a step; an empty one costs what every step costs."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadTables:
    """lm_head and sampler by sequences, in microseconds, once a step."""

    lm_head: StepTable
    sampler: StepTable

    def us(self, sequences: int) -> float:
        """Both, for that many sequences."""
        return self.lm_head.us(sequences) + self.sampler.us(sequences)


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkTable:
    """Microseconds of one transfer by its size: measured points, or ``alpha + beta * bytes``."""

    sizes_bytes: Sequence[int]
    us: Sequence[float]

    @classmethod
    def alpha_beta(cls, *, alpha_us: float, bytes_s: float) -> "NetworkTable":
        """A declared link: a start-up time and a bandwidth."""
        return cls(sizes_bytes=(0, 1 << 30), us=(alpha_us, alpha_us + (1 << 30) / bytes_s * 1e6))

    def time_us(self, size_bytes: float) -> float:
        """One transfer of that size; beyond the table its last slope goes on."""
        sizes, us = self.sizes_bytes, self.us
        i = 0
        while i < len(sizes) - 2 and size_bytes >= sizes[i + 1]:
            i += 1
        slope = (us[i + 1] - us[i]) / (sizes[i + 1] - sizes[i])
        return us[i] + slope * max(size_bytes - sizes[i], 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """What a step sends between its GPUs.

    Every layer has two all-reduces over ``tensor_parallel`` GPUs, every border between the
    ``pipeline_parallel`` stages one send, each of ``token_bytes`` a token.
    """

    token_bytes: int
    all_reduce: NetworkTable | None = None
    send: NetworkTable | None = None
    pipeline_parallel: int = 1

    def us(self, tokens: int, layers: int) -> float:
        """All transfers of a step."""
        size = tokens * self.token_bytes
        total = 0.0
        if self.all_reduce is not None:
            total += 2 * layers * self.all_reduce.time_us(size)
        if self.send is not None:
            total += (self.pipeline_parallel - 1) * self.send.time_us(size)
        return total


class _DenseTime(NamedTuple):
    """The parts of a step's time that its tokens alone decide."""

    dense_s: float
    weights_s: float
    network_s: float
    variance_us2: float  # of a layer


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTiming:
    """A step from its kernels: dense layers by table, attention, per-sequence cost, links.

    ``fixed_s`` and ``request_s`` are what the host adds a step and a sequence. The layers of one
    step share their noise (clocks and heat do not change within it): deviations of the same kernel
    add up over layers, those of different kernels as squares.
    """

    layers: int
    dense: DenseTables
    attention: Attention
    head: HeadTables
    links: Links
    fixed_s: float
    request_s: float
    _by_tokens: dict[int, _DenseTime] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _by_sequences: dict[int, float] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def step(self, batch: StepBatch) -> StepTime:
        """The time of a step."""
        tokens = batch.tokens or 1
        sequences = len(batch.prefills) + batch.decodes
        dense = self._by_tokens.get(tokens) or self._dense_time(tokens)
        dense_s, weights_s, network_s, variance_us2 = dense
        head_s = self._by_sequences.get(sequences)
        if head_s is None:
            head_s = self._by_sequences[sequences] = self.head.us(max(sequences, 1)) * 1e-6
        prefill_us, decode_us, attention_std_us = self.attention.us(batch)
        layers = self.layers * 1e-6
        return StepTime(
            self.fixed_s + self.request_s * sequences,
            dense_s,
            weights_s,
            prefill_us * layers,
            decode_us * layers,
            head_s,
            network_s,
            sqrt(variance_us2 + attention_std_us * attention_std_us) * layers,
        )

    def _dense_time(self, tokens: int) -> _DenseTime:
        """What a step's tokens take whoever has them; kept, for a run has few counts of tokens."""
        layers = self.layers * 1e-6
        std_us = self.dense.layer_std.us(tokens)
        made = self._by_tokens[tokens] = _DenseTime(
            self.dense.layer.us(tokens) * layers + self.dense.embedding.time.us(tokens) * 1e-6,
            self.dense.layer.values[0] * layers,
            self.links.us(tokens, self.layers) * 1e-6,
            std_us * std_us,
        )
        return made


@dataclass(frozen=True, kw_only=True, slots=True)
class CoefficientTiming:
    """A step from DistServe's closed form, milliseconds, one server.

    Prefill a + b * tokens + c * sum of squared lengths; decode a + b * sum of contexts + c * number
    of requests, with other coefficients from ``threshold`` requests on. A step with both pays the
    larger ``a`` once (ours: DistServe never mixes them).

    Source: LLMServe/DistServe, simdistserve.
    """

    prefill: Sequence[float]
    decode_small: Sequence[float]
    decode_large: Sequence[float]
    threshold: int
    relative_std: float

    @classmethod
    def of(cls, entry: CoefficientData, *, relative_std: float) -> "CoefficientTiming":
        """From one tensor-parallel degree of the data file."""
        return cls(
            prefill=entry["prefill"],
            decode_small=entry["decoding_smallbs"],
            decode_large=entry["decoding_largebs"],
            threshold=entry["decoding_large_small_bs_threshold"],
            relative_std=relative_std,
        )

    def step(self, batch: StepBatch) -> StepTime:
        """The time of a step."""
        small = batch.decodes < self.threshold
        base, context, each = self.decode_small if small else self.decode_large
        start, token, square = self.prefill
        fixed_ms = max(start if batch.prefills else 0.0, base if batch.decodes else 0.0)
        if not batch.sequences:
            fixed_ms = min(start, base)
        prefill_tokens = sum(n for n, _ in batch.prefills)
        # A prompt of L tokens has L * L / 2 pairs; a later part of one counts its own pairs.
        pairs = sum(n * (p + n / 2) for n, p in batch.prefills)
        dense_ms = token * prefill_tokens + each * batch.decodes
        prefill_ms, decode_ms = 2 * square * pairs, context * batch.context_tokens
        total_ms = fixed_ms + dense_ms + prefill_ms + decode_ms
        return StepTime(
            fixed_ms * 1e-3,
            dense_ms * 1e-3,
            0.0,
            prefill_ms * 1e-3,
            decode_ms * 1e-3,
            0.0,
            0.0,
            total_ms * 1e-3 * self.relative_std,
        )
