"""What is held equal in all arms: engine settings, workloads, cores. Data and builders only."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from weir_agent.sample_model import SampleModelShape
from weir_cli.loadlab.processes import ServerSpec
from weir_cli.loadlab.processor import native_dtype
from weir_cli.loadlab.workload import Lengths, OfflineShape, OnlineShape

MODEL = "sample"
BLOCKS = 750
BLOCK_TOKENS = 32
MODEL_LEN = 4096
SEQUENCES = 64
BATCHED_TOKENS = 2048
OFFLINE_IN_FLIGHT = 128
"""How many requests a batch client of the stock arms keeps in flight: enough that the engine never
waits for one, few enough that the server is not tried by its queue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Both loads of a comparison.

    ``lead_s``: seconds of other online traffic that a new agent gets first. In service it would
    know what steps cost, and how long conversations wait between two turns.
    """

    name: str
    online: OnlineShape
    offline: OfflineShape
    lead_s: float = 10.0


QUESTION = Lengths(median=48, sigma=0.3, low=16, high=96)
ANSWER = Lengths(median=24, sigma=0.3, low=8, high=64)

TRACE = Workload(
    name="trace",
    # The shape of the Azure conversation trace (CC BY 4.0): log-normal prompts and outputs, cut to
    # a quarter and a third of its medians so that one core carries them.
    online=OnlineShape(
        rate_per_s=2.0,
        prompt=Lengths(median=280, sigma=0.7, low=32, high=1500),
        output=Lengths(median=44, sigma=0.5, low=8, high=128),
    ),
    offline=OfflineShape(
        lines=600, documents=40, document_tokens=1500, question=QUESTION, output=ANSWER
    ),
)
PRESSURE = Workload(
    name="pressure",
    # Conversations of eight turns under way, half a minute between turns: their histories fill half
    # of the cache meanwhile. And 120 documents, of which the cache holds a tenth.
    online=OnlineShape(
        rate_per_s=1.0,
        prompt=Lengths(median=110, sigma=0.5, low=32, high=300),
        output=Lengths(median=36, sigma=0.4, low=8, high=96),
        turns=8,
        think_s=25.0,
    ),
    offline=OfflineShape(
        lines=600, documents=120, document_tokens=1500, question=QUESTION, output=ANSWER
    ),
    lead_s=40.0,
)
WORKLOADS = {workload.name: workload for workload in (TRACE, PRESSURE)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """What the engine computes on: its size, its own arguments, and loads that it can carry.

    ``pinned``: the engine has one core and everything else another, so that its processor time is
    its busy time; without it there is no bound. ``dummy_weights``: the engine makes its weights
    itself, and the model's folder has none. ``warm_tokens``: prompts that are run before each run,
    because kernels of a size are slow at first.
    """

    name: str
    shape: SampleModelShape
    dummy_weights: bool
    pinned: bool
    blocks: int
    sequences: int
    batched_tokens: int
    offline_in_flight: int
    workloads: Mapping[str, Workload]
    engine_args: tuple[str, ...]
    environment: Mapping[str, str]
    static_tokens: tuple[int, ...]
    warm_tokens: tuple[int, ...] = ()


CPU = Host(
    name="cpu",
    shape=SampleModelShape(),
    dummy_weights=False,
    pinned=True,
    blocks=BLOCKS,
    sequences=SEQUENCES,
    batched_tokens=BATCHED_TOKENS,
    offline_in_flight=OFFLINE_IN_FLIGHT,
    workloads=WORKLOADS,
    engine_args=("--enforce-eager", "--dtype", native_dtype()),
    # One compute thread, the worker inside the EngineCore process.
    environment={
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    },
    static_tokens=(48, 64, 96, 128, 192, 256, 384),
)
"""One core of a machine without an accelerator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SloTarget:
    """One bound on the engine's online latency, and what online traffic alone has, in seconds."""

    metric: str
    statistic: str
    threshold_s: float
    reference_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSetup:
    """The differences between arms' servers.

    ``scheduler`` is ``stock``, ``fixed`` or ``weir``; ``policy`` vLLM's scheduling policy;
    ``batched_tokens`` None is the host's. ``real_control_plane`` puts the control plane itself
    beside an agent, not the stand-in.
    """

    scheduler: str = "stock"
    policy: str = "priority"
    batched_tokens: int | None = None
    slos: tuple[SloTarget, ...] = ()
    real_control_plane: bool = False


class CallsTo(Protocol):
    """Where an agent's control plane listens, and the key that it wants."""

    @property
    def port(self) -> int:
        """A port of the loopback interface."""

    @property
    def agent_key(self) -> str:
        """A key of scope `agent`."""


def engine_args(model: Path, setup: EngineSetup, host: Host = CPU) -> list[str]:
    """Arguments of `vllm serve`, the same for all arms but for policy and step size."""
    batched_tokens = setup.batched_tokens or host.batched_tokens
    return [
        "--model",
        str(model),
        "--served-model-name",
        MODEL,
        *host.engine_args,
        "--block-size",
        str(BLOCK_TOKENS),
        "--num-gpu-blocks-override",
        str(host.blocks),
        "--max-model-len",
        str(host.shape.max_length_tokens),
        # vLLM wants at least as many tokens a step as sequences.
        "--max-num-seqs",
        str(min(host.sequences, batched_tokens)),
        "--max-num-batched-tokens",
        str(batched_tokens),
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--disable-uvicorn-access-log",
        "--seed",
        "0",
    ]


def environment(host: Host = CPU) -> dict[str, str]:
    """The servers' environment."""
    root = Path(__file__).resolve().parents[2]
    paths = [str(root / part) for part in ("", "controlplane", "node_agent", "cli")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        **host.environment,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # offers POST /reset_prefix_cache
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }


def stock_server(model: Path, setup: EngineSetup, port: int, *, host: Host = CPU) -> ServerSpec:
    """The API server of vLLM itself; ``fixed`` only names another scheduler class."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--scheduling-policy", setup.policy]
    command += engine_args(model, setup, host)
    if setup.scheduler == "fixed":
        command += ["--scheduler-cls", "benchmarks.colocation.fixed_priority.FixedPriority"]
    return ServerSpec(command=command, environment=environment(host), port=port)


def weir_server(
    model: Path,
    setup: EngineSetup,
    port: int,
    *,
    control: CallsTo,
    data_dir: Path,
    host: Host = CPU,
) -> ServerSpec:
    """`weir serve agent`, with the cell's SLO."""
    slos: Sequence[dict[str, object]] = [
        {
            "metric": slo.metric,
            "statistic": slo.statistic,
            "threshold_s": slo.threshold_s,
            "reference_s": slo.reference_s,
        }
        for slo in setup.slos
    ]
    return ServerSpec(
        command=[sys.executable, "-m", "weir_cli", "serve", "agent"],
        environment={
            **environment(host),
            "WEIR_HOST": "127.0.0.1",
            "WEIR_PORT": str(port),
            "WEIR_AGENT_ID": "benchmark",
            "WEIR_ENGINE_ARGS": shlex.join(engine_args(model, setup, host)),
            "WEIR_CONTROL_PLANE_URL": f"http://127.0.0.1:{control.port}",
            "WEIR_CONTROL_PLANE_KEY": control.agent_key,
            "WEIR_DATA_DIR": str(data_dir),
            "WEIR_LOG_LEVEL": "warning",
            "WEIR_SLO": json.dumps(slos),
        },
        port=port,
        ready_path="/readyz",
    )
