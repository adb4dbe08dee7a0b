"""What the demo runs: its load and its servers, the same for every arm. Pure."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weir_cli.demo.tether import tethered
from weir_cli.demo.trace import TraceRow, fit
from weir_cli.errors import CliError, ExitStatus
from weir_cli.loadlab.measure import Window
from weir_cli.loadlab.processes import ServerSpec, free_port
from weir_cli.loadlab.processor import native_dtype
from weir_cli.loadlab.workload import (
    Lengths,
    OfflineLine,
    OfflineOrder,
    OfflineShape,
    OnlineRequest,
    from_arrivals,
    offline_pass,
)

MODEL = "sample"
ENDPOINT = "/v1/completions"
SEED = 7
ONLINE_RATE_PER_S = 1.5
ONLINE_MAX_INPUT_TOKENS = 1_000
ONLINE_MAX_OUTPUT_TOKENS = 96
STATIC_STEP_TOKENS = 96
OFFLINE_CONCURRENCY = 48
BATCH = OfflineShape(
    lines=600,
    documents=40,
    document_tokens=900,
    question=Lengths(median=64, sigma=0.4, low=16, high=192),
    output=Lengths(median=20, sigma=0.5, low=4, high=64),
)
ENGINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker runs inside the engine process
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # offers POST /reset_prefix_cache, for the next arm
}
SERVERS_KEY = "VLLM_API_KEY"  # servers that inherit it refuse the load, which has none
DEFAULT_STEP_TOKENS = 2_048
_TRACE_S = 600.0  # shorter runs replay the beginning of this much of a trace: all the same requests


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long an arm runs: ``measure_s`` counts.

    A minute by default: what a mean saved before the window is spent in it, and half a minute of
    this traffic is 20 requests.

    The Weir arm goes on until its batch has ended, at most ``batch_within_s``, with online traffic
    for the first ``online_longer_s`` of that; its window closes when its batch has no line left.
    """

    ramp_s: float = 10.0
    measure_s: float = 60.0
    tail_s: float = 10.0
    online_longer_s: float = 30.0

    @property
    def window(self) -> Window:
        """The measured window of an arm."""
        return Window(ramp_s=self.ramp_s, measure_s=self.measure_s, tail_s=self.tail_s)

    def batch_within_s(self, lines: int) -> float:
        """Seconds that a batch may take after the window: 240 for as many lines as by default."""
        return 240.0 * max(1.0, lines / BATCH.lines)

    @property
    def online_s(self) -> float:
        """Seconds that the replayed trace has to last."""
        return max(_TRACE_S, self.window.total_s + self.online_longer_s)


def online_load(rows: Sequence[TraceRow], *, duration_s: float) -> list[OnlineRequest]:
    """The replayed trace: the same requests in every arm."""
    fitted = fit(
        list(rows),
        rate_per_s=ONLINE_RATE_PER_S,
        duration_s=duration_s,
        max_input_tokens=ONLINE_MAX_INPUT_TOKENS,
        max_output_tokens=ONLINE_MAX_OUTPUT_TOKENS,
    )
    arrivals = [(row.arrival_s, row.input_tokens, row.output_tokens) for row in fitted]
    return from_arrivals(arrivals, seed=SEED)


def check_online(online: Sequence[OnlineRequest], window: Window) -> None:
    """Refuses a trace that has nothing to measure.

    Raises:
        CliError: none of its requests is due in the window.
    """
    opens_s, closes_s = window.ramp_s, window.ramp_s + window.measure_s
    if not any(opens_s <= request.at_s < closes_s for request in online):
        raise CliError(
            f"--trace: at {ONLINE_RATE_PER_S:g} requests a second its {len(online)} requests end "
            f"after {online[-1].at_s:.0f} s, and what is measured begins after {opens_s:.0f} s",
            remedy=f"give a trace of {round(ONLINE_RATE_PER_S * closes_s)} requests or more",
            status=ExitStatus.USAGE,
        )


def batch_lines(count: int) -> list[OfflineLine]:
    """The batch: so many questions over 40 documents, in no order."""
    return offline_pass(replace(BATCH, lines=count), seed=SEED, order=OfflineOrder.SHUFFLED)


def batch_jsonl(lines: Sequence[OfflineLine]) -> bytes:
    """The same lines as an input file."""
    return b"".join(
        json.dumps(
            {
                "custom_id": line.custom_id,
                "method": "POST",
                "url": ENDPOINT,
                "body": {
                    "model": MODEL,
                    "prompt": line.prompt,
                    "max_tokens": line.max_tokens,
                    "temperature": 0,
                },
            }
        ).encode()
        + b"\n"
        for line in lines
    )


def engine_args(model: Path) -> list[str]:
    """Arguments of `vllm serve`, the same for all arms but for the size of a step."""
    return [
        *("--model", str(model), "--served-model-name", MODEL),
        *("--enforce-eager", "--dtype", native_dtype()),
        *("--block-size", "32", "--num-gpu-blocks-override", "750"),
        *("--max-model-len", "2048", "--max-num-seqs", "64", "--enable-prefix-caching"),
        *("--disable-uvicorn-access-log", "--seed", "0"),
    ]


def stock_server(model: Path, *, step_tokens: int = DEFAULT_STEP_TOKENS) -> ServerSpec:
    """VLLM as it comes, with its priority policy: online 0, offline 1."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", str(port), *engine_args(model)),
        *("--max-num-batched-tokens", str(step_tokens), "--scheduling-policy", "priority"),
    ]
    return _spec(command, port, {}, ready_path="/health")


def controlplane_server(folder: Path) -> ServerSpec:
    """A control plane with its embedded database."""
    port = free_port()
    settings = {
        "WEIR_PORT": str(port),
        "WEIR_DATA_DIR": str(folder / "controlplane"),
        "WEIR_POLL_S": "1",
        "WEIR_LOG_LEVEL": "warning",
    }
    command = [sys.executable, "-m", "weir_cli", "serve", "controlplane"]
    return _spec(command, port, settings, ready_path="/readyz")


def agent_server(
    folder: Path, model: Path, *, controlplane: str, key: str, slos: Sequence[Mapping[str, Any]]
) -> ServerSpec:
    """An agent whose engine runs under Weir's scheduler."""
    port = free_port()
    settings = {
        "WEIR_PORT": str(port),
        "WEIR_AGENT_ID": "demo",
        "WEIR_DATA_DIR": str(folder / "agent"),
        "WEIR_ENGINE_ARGS": shlex.join(
            [*engine_args(model), "--max-num-batched-tokens", str(DEFAULT_STEP_TOKENS)]
        ),
        "WEIR_CONTROL_PLANE_URL": controlplane,
        "WEIR_CONTROL_PLANE_KEY": key,
        "WEIR_SLO": json.dumps(list(slos)),
        "WEIR_LOG_LEVEL": "warning",
    }
    command = [sys.executable, "-m", "weir_cli", "serve", "agent"]
    return _spec(command, port, settings, ready_path="/readyz")


def _spec(
    command: Sequence[str], port: int, settings: Mapping[str, str], *, ready_path: str
) -> ServerSpec:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("WEIR_") and name != SERVERS_KEY
    }
    return ServerSpec(
        command=tethered(command),
        environment={**inherited, **ENGINE_ENVIRONMENT, **settings},
        port=port,
        ready_path=ready_path,
    )
