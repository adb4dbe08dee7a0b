"""The agent as a process with a real vLLM engine: classes, streaming, offline lines, faults."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.fake_control_plane import FakeControlPlane, completion_lines
from tests.support.processes import ProcessDiedError, free_port, stop, tail, wait_ready
from tests.support.serving import serve_in_thread
from weir_agent.sample_model import SampleModelShape, write_sample_model
from weir_cli.loadlab.processor import native_dtype
from weir_engine.latency import models

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

ENGINE_ARGS = (
    f"--served-model-name sample --dtype {native_dtype()} --block-size 32 --enforce-eager "
    "--max-model-len 1024 --num-gpu-blocks-override 256 --max-num-seqs 16"
)
ONLINE_KEY = "key-of-the-online-endpoint"


class RealAgent:
    """`weir serve agent` as a process, its control plane in this one."""

    def __init__(
        self, folder: Path, model: Path, control_plane: FakeControlPlane, url: str
    ) -> None:
        self.control_plane = control_plane
        self.again = partial(RealAgent, folder, model, control_plane, url)
        self.port = free_port()
        self.log = folder / "agent.log"
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {ONLINE_KEY}"},
            timeout=120,
        )
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WEIR_")},
            "PYTHONPATH": os.pathsep.join(sys.path),
            "WEIR_PORT": str(self.port),
            "WEIR_AGENT_ID": "agent-1",
            "WEIR_DATA_DIR": str(folder / "data"),
            "WEIR_CONTROL_PLANE_URL": url,
            "WEIR_RESTART_BACKOFF_S": "0.1",
            "WEIR_ENGINE_ARGS": f"--model {model} {ENGINE_ARGS} --api-key {ONLINE_KEY}",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "weir_cli", "serve", "agent"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_ready(self.process, self.ready, self.log, within_s=280)

    def ready(self) -> bool:
        try:
            return self.http.get("/readyz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def until(self, condition: Callable[[], bool], *, within_s: float = 240) -> None:
        deadline_s = time.monotonic() + within_s
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise ProcessDiedError(f"not in time\n{tail(self.log)}")
            time.sleep(0.05)

    def metric(self, name: str) -> float:
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def processes(self) -> list[int]:
        """Child and engine, in order of descent."""
        found, parent = [], self.process.pid
        while (children := _children(parent)) != []:
            parent = children[-1]
            found.append(parent)
        return found


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            with contextlib.suppress(OSError):  # it ended while this looked
                if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealAgent]:
    folder = tmp_path_factory.mktemp("agent")
    model = folder / "model"
    write_sample_model(
        model,
        SampleModelShape(layers=2, hidden_size=128, intermediate_size=256, heads=4, kv_heads=2),
    )
    control_plane = FakeControlPlane(next_sync_s=0.2)
    control_plane.policy = {**(control_plane.policy or {}), "offline_kv_blocks": 200}
    with serve_in_thread(control_plane.app) as url:
        running = RealAgent(folder, model, control_plane, url)
        yield running
        stop(running.process, within_s=60)
        running.http.close()


CHAT = {
    "model": "sample",
    "messages": [{"role": "user", "content": "Tell me something."}],
    "max_tokens": 12,
    "temperature": 0,
}


def run_lines(agent: RealAgent, bodies: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The results of these bodies as a chunk of their own."""
    plane = agent.control_plane
    first = 1 + max(plane.results, default=0)
    lines = [
        {"line": first + index, "custom_id": f"id-{index}", "url": url, "body": body}
        for index, (url, body) in enumerate(bodies)
    ]
    plane.add_chunk(lines)
    agent.until(lambda: plane.done)
    return [plane.results[first + index][0] for index in range(len(bodies))]


def test_streaming_arrives_in_parts(agent: RealAgent) -> None:
    chat = {**CHAT, "max_tokens": 64}  # a starved server sends several tokens at once
    with agent.http.stream("POST", "/v1/chat/completions", json={**chat, "stream": True}) as answer:
        events = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    text = "".join(
        json.loads(event[6:])["choices"][0]["delta"].get("content") or "" for event in events[:-1]
    )
    whole = agent.http.post("/v1/chat/completions", json=chat).json()
    assert text == whole["choices"][0]["message"]["content"]
    assert len(events) > 5


@pytest.mark.parametrize("interval", [1, 8])
def test_tokens_are_measured_however_many_an_event_has(agent: RealAgent, interval: int) -> None:
    def counts() -> list[float]:
        names = ("ttft", "tbt", "tpot")
        return [agent.metric(f"weir_online_{name}_seconds_count") for name in names]

    before = counts()
    body = {**CHAT, "max_tokens": 64, "ignore_eos": True, "stream": True}
    usage = {"include_usage": True, "continuous_usage_stats": True}
    request = {**body, "stream_interval": interval, "stream_options": usage}
    with agent.http.stream("POST", "/v1/chat/completions", json=request) as answer:
        *events, last = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert last == "data: [DONE]"
    given = [json.loads(event[6:])["usage"]["completion_tokens"] for event in events]
    assert given[-1] == 64
    first = next(tokens for tokens in given if tokens)  # many, where the server was starved
    agent.until(lambda: counts()[2] > before[2])  # it is counted when the application has ended
    measured = [after - old for after, old in zip(counts(), before, strict=True)]
    assert measured == [1, 64 - first, 1]


def test_an_offline_line_is_answered_as_online_traffic_is(agent: RealAgent) -> None:
    completion = {"model": "sample", "prompt": "Once upon", "max_tokens": 7, "temperature": 0}
    results = run_lines(agent, [("/v1/chat/completions", CHAT), ("/v1/completions", completion)])
    for result, (path, body) in zip(
        results,
        (("/v1/chat/completions", CHAT), ("/v1/completions", completion)),
        strict=True,
    ):
        online = agent.http.post(path, json=body)
        assert result["response"]["status_code"] == online.status_code == 200
        offline_body, online_body = result["response"]["body"], online.json()
        for varies in ("id", "created"):
            offline_body.pop(varies)
            online_body.pop(varies)
        assert offline_body == online_body
    assert results[0]["usage"]["output_tokens"] == 12


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{"role": "wizard", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x" * 3000}]},
        {"temperature": -4},
        {"max_tokens": "many"},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 3}}},
    ],
    ids=["role", "too-long", "temperature", "max_tokens", "schema"],
)
def test_a_lines_own_error_is_its_result_word_for_word(
    agent: RealAgent, change: dict[str, Any]
) -> None:
    """Design §8 rule 5: a line's own error is a result, never a retry."""
    body = {**CHAT, **change}
    (result,) = run_lines(agent, [("/v1/chat/completions", body)])
    online = agent.http.post("/v1/chat/completions", json=body)
    assert online.status_code == 400
    assert result["response"]["status_code"] == 400
    assert result["response"]["body"] == online.json()


def test_the_online_endpoint_can_require_a_key(agent: RealAgent) -> None:
    """Design §8, Security; batch lines need none, and probes and metrics stay open."""
    body = {"model": "sample", "prompt": "hello", "max_tokens": 2}
    for key, status in ((None, 401), ("another", 401), (ONLINE_KEY, 200)):
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        answer = httpx.post(
            f"{agent.http.base_url}/v1/completions", json=body, headers=headers, timeout=120
        )
        assert answer.status_code == status
    for path in ("invocations", "tokenize", "detokenize", "openapi.json", "v1/models"):
        answer = httpx.post(f"{agent.http.base_url}/{path}", json=body, timeout=120)
        assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})
    for path in ("invocations", "tokenize"):
        assert agent.http.post(f"/{path}", json=body).status_code == 200
    (result,) = run_lines(agent, [("/v1/completions", body)])
    assert result["response"]["status_code"] == 200
    for path in ("healthz", "readyz", "metrics", "health", "ping"):
        assert httpx.get(f"{agent.http.base_url}/{path}", timeout=60).status_code == 200
    assert ONLINE_KEY not in agent.log.read_text()


def served(agent: RealAgent, klass: str, *, after_online_tokens: int) -> float:
    """Tokens of a class that the agent counts, once it has counted all that was done until now.

    The engine reports online and offline together: an online request of now, larger than what the
    others here leave uncounted, marks the report.
    """
    count = 'weir_tokens_total{{class="{}",kind="served"}}'
    before = agent.metric(count.format("online"))
    body = {"model": "sample", "prompt": "count", "max_tokens": after_online_tokens}
    answer = agent.http.post("/v1/completions", json={**body, "ignore_eos": True})
    assert answer.status_code == 200
    agent.until(lambda: agent.metric(count.format("online")) >= before + after_online_tokens)
    return agent.metric(count.format(klass))


def test_no_http_client_can_claim_a_class(agent: RealAgent) -> None:
    """Design §8, Security: the agent alone sets class and priority."""
    offline = served(agent, "offline", after_online_tokens=200)
    for claim in (
        {"priority": 5},
        {"vllm_xargs": {"weir": "offline"}},
        {"vllm_xargs": {"weir.class": "offline"}},
    ):
        answer = agent.http.post(
            "/v1/completions",
            json={"model": "sample", "prompt": "claim", "max_tokens": 20, **claim},
            headers={"X-Vllm-Priority": "7"},
        )
        assert answer.status_code == 200
    assert served(agent, "offline", after_online_tokens=200) == offline
    run_lines(agent, [("/v1/completions", line["body"]) for line in completion_lines(2)])
    assert served(agent, "offline", after_online_tokens=200) > offline


def test_a_killed_engine_comes_back_and_every_line_is_answered_once(agent: RealAgent) -> None:
    """Design §8 rule 5: the lines in the engine are reported; online is back by itself."""
    plane = agent.control_plane
    first = 1 + max(plane.results, default=0)
    plane.add_chunk(completion_lines(24, first=first, max_tokens=200))
    agent.until(lambda: agent.metric('weir_engine_requests{class="offline",state="running"}') > 0)
    engine = agent.processes()[-1]
    os.kill(engine, signal.SIGKILL)
    agent.until(lambda: bool(plane.deaths))
    agent.until(agent.ready)
    assert agent.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    agent.until(lambda: plane.done)
    (death,) = plane.deaths.values()
    assert death["kind"] == "crash"
    assert {entry["line"] for entry in death["resident"]} <= set(range(first, first + 24))
    assert death["resident"]
    assert all(len(plane.results[line]) == 1 for line in range(first, first + 24))
    assert agent.processes()[-1] != engine


def test_a_killed_agent_leaves_no_process_behind(agent: RealAgent) -> None:
    child, engine = agent.processes()
    os.kill(child, signal.SIGKILL)
    agent.until(lambda: not Path(f"/proc/{engine}").exists())
    agent.until(agent.ready)
    assert agent.processes() != [child, engine]
    assert agent.metric("weir_engine_restarts_total") == 2  # the engine's death before, and this


def test_an_engine_that_is_terminated_cuts_no_answer_short(agent: RealAgent) -> None:
    """Design §8 rule 5: vLLM answers what it aborts as if it were whole; those lines run again."""
    plane = agent.control_plane
    first = 1 + max(plane.results, default=0)
    deaths = len(plane.deaths)
    plane.add_chunk(completion_lines(24, first=first, max_tokens=200))
    agent.until(lambda: agent.metric('weir_engine_requests{class="offline",state="running"}') > 0)
    engine = agent.processes()[-1]
    os.kill(engine, signal.SIGTERM)
    agent.until(lambda: len(plane.deaths) > deaths)
    agent.until(lambda: plane.done)
    records = [plane.results[line] for line in range(first, first + 24)]
    assert all(len(answers) == 1 for answers in records)
    ends = {answers[0]["response"]["body"]["choices"][0]["finish_reason"] for answers in records}
    assert ends <= {"length", "stop"}
    agent.until(agent.ready)
    assert agent.processes()[-1] != engine


def test_sigterm_finishes_streams_and_hands_work_back(agent: RealAgent) -> None:
    """Design §9: on SIGTERM offline work is handed back, online drained, then the engine stops."""
    plane = agent.control_plane
    first = 1 + max(plane.results, default=0)
    plane.add_chunk(completion_lines(16, first=first, max_tokens=900))
    agent.until(lambda: agent.metric('weir_engine_requests{class="offline",state="running"}') > 0)
    request = {**CHAT, "max_tokens": 150, "stream": True}
    with agent.http.stream("POST", "/v1/chat/completions", json=request) as answer:
        lines = answer.iter_lines()
        next(lines)
        agent.process.terminate()
        rest = list(lines)
    assert "data: [DONE]" in rest
    assert agent.process.wait(240) == 0
    assert "ERROR" not in agent.log.read_text().rpartition('"agent.draining"')[2]
    assert plane.syncs[-1]["state"] == "draining"
    assert all(chunk.state != "leased" for chunk in plane.chunks.values())
    assert all(len(records) == 1 for records in plane.results.values())
    kept = json.loads((agent.log.parent / "data" / "latency_profile.json").read_text())["profile"]
    warmed = models.create(kept["model"], kept).state()
    assert warmed["coefficients"] == pytest.approx(kept["coefficients"])


def test_the_next_start_takes_up_what_the_engine_learned(agent: RealAgent) -> None:
    """Design §9: a saved profile warms the latency model up."""
    assert agent.process.poll() == 0
    again = agent.again()
    try:
        assert '"latency_profile.taken_up"' in again.log.read_text()
        assert again.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    finally:
        stop(again.process, within_s=60)
        again.http.close()
