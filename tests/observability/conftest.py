"""A live Weir under a real Prometheus: control plane, an agent with real vLLM, work on both."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client import start_http_server

from observability.alerts import ALERTS, rules
from tests.support.batches import as_jsonl, shared_document_lines, submit
from tests.support.processes import ProcessDiedError, tail
from tests.support.prometheus import PrometheusServer
from tests.support.stack import MODEL, Stack
from tests.support.tiny import write_tiny_model
from tests.support.waiting import eventually
from weir_operator.metrics import OperatorMetrics

SLO = (
    '[{"metric": "ttft", "statistic": "p99", "threshold_s": 5},'
    ' {"metric": "tbt", "statistic": "p99", "threshold_s": 2},'
    ' {"metric": "tpot", "statistic": "mean", "threshold_s": 2}]'
)
AGENT = {"service": "default", "agent": "agent-1"}
UNSERVED = "nobodys-model"
BUCKET_S = 10
PAST_S = 1500


@dataclass(frozen=True, kw_only=True)
class Live:
    """What runs; ``batch`` is under way until a test cancels it."""

    stack: Stack
    batch: str
    prometheus: PrometheusServer
    operator: OperatorMetrics


def steady(bucket: int) -> int:
    """Online KV demand that goes up and down."""
    return 8 + bucket % 5


def growing(bucket: int) -> int:
    """Online KV demand that grows by half in every two minutes: no past foretells it."""
    return int(2 * 1.5 ** (bucket * BUCKET_S / 120))


def seed_demand(database: Path, demand: Callable[[int], int]) -> None:
    """Online KV demand of the last minutes, in blocks by bucket: forecasts are scored at once."""
    first_s = (int(time.time()) - PAST_S) // BUCKET_S * BUCKET_S
    levels = [(first_s + BUCKET_S * n, demand(n)) for n in range(PAST_S // BUCKET_S)]
    rows = [
        ("agent-1", BUCKET_S, start_s, 10, 10.0 * level, 10.0 * level**2, level)
        for start_s, level in levels
    ]
    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM kv_demand WHERE length_s = ?", (BUCKET_S,))
        connection.executemany(
            "INSERT INTO kv_demand (agent_id, length_s, start_s, samples, sum_blocks,"
            " sum_sq_blocks, max_blocks) VALUES (?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
    connection.close()


def database_of(stack: Stack) -> Path:
    """The control plane's database."""
    return stack.folder / "controlplane" / "weir.db"


def chat_until(done: threading.Event, url: str) -> None:
    """Streams online completions, one after the other."""
    body = {"model": MODEL, "prompt": "once upon a time", "max_tokens": 16, "stream": True}
    with httpx.Client(timeout=30) as client:
        while not done.is_set():
            try:
                with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
                    for _ in answer.iter_bytes():
                        pass
            except httpx.HTTPError:
                done.wait(0.2)  # the engine is down: a test did that
            done.wait(0.1)


def without_hold() -> str:
    """The rules, firing as soon as their causes are there."""
    text = rules()
    for alert in ALERTS:
        text = text.replace(f"for: {alert.hold}\n", "for: 0s\n")
    return text


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Everything, with a batch and online traffic under way."""
    model = write_tiny_model(tmp_path_factory.mktemp("model") / "sample")
    stack = Stack(
        tmp_path_factory.mktemp("observed"),
        model,
        agent={"WEIR_SLO": SLO},
        controlplane={"WEIR_MODELS": UNSERVED, "WEIR_MIN_COMPLETION_WINDOW_S": "60"},
    )
    operator = OperatorMetrics()
    operator.leader.set(1)
    done = threading.Event()
    traffic = threading.Thread(target=chat_until, args=(done, stack.agent.url))
    exporter, exporter_thread = start_http_server(0, addr="127.0.0.1", registry=operator.registry)
    prometheus: PrometheusServer | None = None
    try:
        stack.controlplane.kill()
        seed_demand(database_of(stack), steady)
        stack.controlplane.start()
        prometheus = PrometheusServer(
            tmp_path_factory.mktemp("prometheus"),
            targets={
                stack.controlplane.url.removeprefix("http://"): {},
                stack.agent.url.removeprefix("http://"): AGENT,
                f"127.0.0.1:{exporter.server_port}": {},
            },
            rules=without_hold(),
        )
        traffic.start()
        # Before the agent has synced again, a batch would name a model that nobody serves.
        if not eventually(lambda: "serving" in stack.agent_states()):
            raise ProcessDiedError(f"the agent does not sync\n{tail(stack.agent.log)}")
        # More than any machine serves while these tests look at a batch that is under way.
        lines = shared_document_lines(6_000, documents=40, document_tokens=150, max_tokens=256)
        batch = submit(stack.client(), as_jsonl(lines)).id
        yield Live(stack=stack, batch=batch, prometheus=prometheus, operator=operator)
    finally:
        done.set()
        if traffic.is_alive():
            traffic.join(60)
        if prometheus is not None:
            prometheus.close()
        exporter.shutdown()
        exporter.server_close()
        exporter_thread.join(10)
        stack.close()
