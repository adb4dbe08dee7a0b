"""The comparison on one data-centre GPU: a model of eight billion parameters, longer loads.

Lengths are what the CPU's are cut from, so prompts of the Azure conversation trace are whole here.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.colocation.setup import ANSWER, PRESSURE, QUESTION, TRACE, Host, Workload
from weir_agent.sample_model import SampleModelShape
from weir_cli.loadlab.workload import Lengths, OfflineShape

_TIMES = 4
RATE_PER_S = 6.0


def _longer(lengths: Lengths) -> Lengths:
    return replace(
        lengths,
        median=_TIMES * lengths.median,
        low=_TIMES * lengths.low,
        high=_TIMES * lengths.high,
    )


def _longer_lines(shape: OfflineShape) -> OfflineShape:
    return replace(
        shape,
        document_tokens=_TIMES * shape.document_tokens,
        question=_longer(QUESTION),
        output=_longer(ANSWER),
    )


def _longer_load(workload: Workload) -> Workload:
    online = workload.online
    return replace(
        workload,
        online=replace(
            online,
            rate_per_s=RATE_PER_S * online.rate_per_s / TRACE.online.rate_per_s,
            prompt=_longer(online.prompt),
            output=_longer(online.output),
        ),
        offline=_longer_lines(workload.offline),
    )


GPU = Host(
    name="gpu",
    # Llama-3.1-8B but for its vocabulary: 320 entries, one a byte.
    shape=SampleModelShape(
        layers=32,
        hidden_size=4_096,
        intermediate_size=14_336,
        heads=32,
        kv_heads=8,
        max_length_tokens=12_288,
    ),
    dummy_weights=True,
    pinned=False,
    blocks=3_000,  # 12.6 GB, a sixth of the documents as on the CPU
    sequences=128,
    batched_tokens=8_192,  # vLLM's own default on such a GPU
    offline_in_flight=256,
    workloads={load.name: _longer_load(load) for load in (TRACE, PRESSURE)},
    engine_args=(
        "--load-format",
        "dummy",
        "--gpu-memory-utilization",
        "0.5",
        # Steps of up to 512 tokens are CUDA graphs, and nothing is compiled: starts take seconds.
        "--compilation-config",
        '{"mode": 0, "cudagraph_mode": "FULL", "max_cudagraph_capture_size": 512}',
    ),
    environment={},
    static_tokens=(256, 512, 1_024, 2_048, 4_096),
    # Beyond graphs, where kernels are loaded and chosen at a size's first use.
    warm_tokens=tuple(round(530 * 1.2**power) for power in range(14)),
)
"""One GPU of 40 GB or more; vLLM schedules asynchronously on it."""
