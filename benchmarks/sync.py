"""How long a sync takes when 1,000 agents call once a second, on PostgreSQL, while chunks move.

Every agent holds a chunk for a while, fetches its lines, uploads results and commits. Server,
database and agents share the machine. `python -m benchmarks.sync`
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import os
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.claims import Claim, render, write_results
from tests.support.postgres import PostgresServer
from weir_cli.api import Api, KeyRequest
from weir_cli.loadlab.processes import Server, ServerSpec, free_port, start_server
from weir_cli.settings import ClientSettings

AGENTS = 1000
MEASURED_S = 60.0
RAMP_S = 60.0
HOLD_S = 60.0
MODEL = "sample"
LINES_A_CHUNK = 8
MODELS = [{"name": MODEL, "revision": "r", "max_model_len": 4096}]
ROOM = {"lines": LINES_A_CHUNK, "tokens": 1_000_000, "result_bytes": 1 << 30}
FULL = {"lines": 0, "tokens": 0, "result_bytes": 0}
SUMMARY = {"count": 60, "mean_s": 0.05, "p50_s": 0.05, "p90_s": 0.06, "p99_s": 0.07}


@dataclass
class Measured:
    """What all agents saw. Latencies in seconds, of syncs sent after the ramp."""

    from_s: float
    latencies_s: list[float] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)


class Connection:
    """One keep-alive HTTP/1.1 connection: a client that costs little beside the server."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._head = f"Host: weir\r\nAuthorization: Bearer {key}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of the answer; opens the connection anew where it was closed idle."""
        try:
            return await self._call(method, path, body)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return await self._call(method, path, body)

    async def _call(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        lines = answer.lower().split(b"\r\n")
        length = next(
            int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length")
        )
        content = await reader.readexactly(length)
        if b"connection: close" in lines:
            self.close()
        return int(answer[9:12]), content

    def close(self) -> None:
        """Closes the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Agent:
    """One agent: syncs once a second, and finishes each chunk `HOLD_S` after it came."""

    def __init__(self, number: int, connection: Connection, measured: Measured) -> None:
        self._id = f"pod-{number:04}"
        self._http = connection
        self._measured = measured
        self._source = random.Random(number)  # noqa: S311 - load, not secrets
        self._held: dict[str, dict[str, Any]] = {}
        self._due_s: dict[str, float] = {}
        self._incarnation: int | None = None
        self._sequence = 0

    async def run(self, until_s: float) -> None:
        """Syncs until the monotonic clock says ``until_s``."""
        await asyncio.sleep(self._source.uniform(0, 0.7 * RAMP_S))
        while time.monotonic() < until_s:
            begun_s = time.monotonic()
            wait_s = await self._sync()
            for chunk_id in [key for key, due_s in self._due_s.items() if due_s < begun_s]:
                await self._finish(self._held[chunk_id])
            await asyncio.sleep(max(0.0, begun_s + wait_s - time.monotonic()))
        self._http.close()

    def _body(self) -> dict[str, Any]:
        return {
            "boot_id": self._id,
            "incarnation": self._incarnation,
            "sequence": self._sequence,
            "service": "svc",
            "models": MODELS,
            "state": "serving",
            "room": FULL if self._held else ROOM,
            "chunks": [
                {key: lease[key] for key in ("chunk_id", "attempt", "nonce")}
                for lease in self._held.values()
            ],
            "telemetry": {
                "window_s": 1.0,
                "total_blocks": 20_000,
                "block_size_tokens": 16,
                "online_kv_blocks": self._source.randrange(4_000, 9_000),
                "offline_kv_blocks": 6_000,
                "free_kv_blocks": 5_000,
                "online_running": 20,
                "offline_running": 40,
                "steps": 20,
                "step_mean_s": 0.05,
                "step_p99_s": 0.07,
                "ttft": SUMMARY,
                "tbt": SUMMARY,
                "tpot": SUMMARY,
            },
        }

    async def _sync(self) -> float:
        self._sequence += 1
        body = json.dumps(self._body()).encode()
        begun_s = time.monotonic()
        status, answer = await self._http.call("POST", f"/internal/v1/agents/{self._id}/sync", body)
        if begun_s >= self._measured.from_s:
            self._measured.latencies_s.append(time.monotonic() - begun_s)
        if status != 200:
            why = f"{status} {json.loads(answer)['error']['code']}"
            self._measured.refused[why] = self._measured.refused.get(why, 0) + 1
            return self._source.uniform(1.0, 5.0)
        reply = json.loads(answer)
        self._incarnation = reply["incarnation"]
        for chunk_id in reply["lost"]:
            self._held.pop(chunk_id, None)
            self._due_s.pop(chunk_id, None)
        for lease in (*reply["adopted"], *reply["chunks"]):
            self._held[lease["chunk_id"]] = lease
            self._due_s[lease["chunk_id"]] = begun_s + HOLD_S * self._source.uniform(0.5, 1.5)
        return float(reply["next_sync_s"])

    async def _finish(self, lease: dict[str, Any]) -> None:
        fence = f"attempt={lease['attempt']}&nonce={lease['nonce']}"
        path = f"/internal/v1/chunks/{lease['chunk_id']}"
        status, content = await self._http.call("GET", f"{path}/lines?{fence}")
        lines = [json.loads(line)["line"] for line in content.splitlines()] if status == 200 else []
        body = b"".join(_result(line) for line in lines)
        query = f"{fence}&sha256={hashlib.sha256(body).hexdigest()}&lines={len(lines)}"
        status, content = await self._http.call("PUT", f"{path}/results?{query}", body)
        state = f"upload {status}"
        if status == 201:
            wish = {
                "attempt": lease["attempt"],
                "nonce": lease["nonce"],
                "upload_id": json.loads(content)["upload_id"],
                "lines": [[line, line] for line in lines],
                "final": True,
            }
            status, content = await self._http.call(
                "POST", f"{path}/commit", json.dumps(wish).encode()
            )
            state = json.loads(content)["state"] if status == 200 else f"commit {status}"
        self._measured.commits[state] = self._measured.commits.get(state, 0) + 1
        self._held.pop(lease["chunk_id"], None)
        self._due_s.pop(lease["chunk_id"], None)


def _result(line: int) -> bytes:
    text = {"choices": [{"text": "x" * 200}]}
    item = {
        "line": line,
        "request_id": f"r{line}",
        "response": {"status_code": 200, "request_id": f"r{line}", "body": text},
        "error": None,
        "usage": {"input_tokens": 100, "cached_tokens": 50, "output_tokens": 50},
    }
    return json.dumps(item).encode() + b"\n"


async def load(port: int, key: str, *, agents: int, seconds: float) -> Measured:
    """Runs the agents; what they saw after the ramp."""
    begun_s = time.monotonic()
    measured = Measured(from_s=begun_s + RAMP_S)
    until_s = measured.from_s + seconds
    await asyncio.gather(
        *(Agent(number, Connection(port, key), measured).run(until_s) for number in range(agents))
    )
    return measured


def submit(url: str, admin_key: str, folder: Path, *, lines: int) -> str:
    """Submits a batch large enough for all; the agents' key.

    Raises:
        RuntimeError: the batch was refused.
    """
    admin = Api(ClientSettings.model_validate({"url": url, "api_key": admin_key}))
    admin.create_tenant("benchmark")
    key = admin.create_key(KeyRequest(scope="tenant", tenant="benchmark")).key
    agent_key = admin.create_key(KeyRequest(scope="agent")).key
    admin.close()
    path = folder / "input.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(lines):
            body = {"model": MODEL, "prompt": f"document {number % 100}: {number}", "max_tokens": 8}
            line = {"custom_id": f"l-{number}", "method": "POST", "url": "/v1/completions"}
            file.write(json.dumps({**line, "body": body}) + "\n")
    api = Api(ClientSettings.model_validate({"url": url, "api_key": key}))
    with path.open("rb") as content:
        file_id = api.upload(path.name, content)
    batch = api.create_batch(file_id, "/v1/completions", "24h", {})
    while batch.status == "validating":
        time.sleep(0.2)
        batch = api.batch(batch.id)
    api.close()
    if batch.status != "in_progress":
        raise RuntimeError(f"the batch is {batch.status}: {batch.errors}")
    return agent_key


def server_spec(folder: Path, database_url: str, port: int) -> ServerSpec:
    """A control plane on PostgreSQL."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("WEIR_")},
        "WEIR_PORT": str(port),
        "WEIR_DATA_DIR": str(folder / "data"),
        "WEIR_DATABASE_URL": database_url,
        "WEIR_MODELS": MODEL,
        "WEIR_LOG_LEVEL": "warning",
        "WEIR_CHUNK_LINES": str(LINES_A_CHUNK),
    }
    command = [sys.executable, "-m", "weir_cli", "serve", "controlplane"]
    return ServerSpec(command=command, environment=environment, port=port, ready_path="/readyz")


def measure(folder: Path, *, agents: int, seconds: float) -> tuple[Measured, float]:
    """What the agents saw, and the share of one core that the control plane used."""
    postgres = PostgresServer()
    port = free_port()
    try:
        database_url = postgres.url(postgres.create_database())
        spec = server_spec(folder, database_url, port)
        server = asyncio.run(start_server(spec, folder / "controlplane.log"))
        try:
            admin_key = (folder / "data" / "admin.key").read_text().strip()
            lines = min(50_000, 4 * agents * LINES_A_CHUNK)
            key = submit(f"http://127.0.0.1:{port}", admin_key, folder, lines=lines)
            used_s, begun_s = cpu_s(server), time.monotonic()
            # The agents share the machine with the server, and their pauses would count as its own.
            gc.freeze()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                measured = runner.run(load(port, key, agents=agents, seconds=seconds))
            cores = (cpu_s(server) - used_s) / (time.monotonic() - begun_s)
        finally:
            asyncio.run(server.stop())
    finally:
        postgres.close()
    return measured, cores


def cpu_s(server: Server) -> float:
    """Seconds of processor time that the server has used."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def claims_of(measured: Measured, cores: float, *, agents: int, seconds: float) -> list[Claim]:
    """The tail latency, the rate that was reached, and what it cost."""
    times = sorted(measured.latencies_s)
    at = {share: times[min(len(times) - 1, int(share * len(times)))] for share in (0.5, 0.99)}
    load_1m = os.getloadavg()[0]
    what = f"{agents} agents, {sum(measured.commits.values())} chunks committed meanwhile"
    return [
        Claim(
            id="sync/p99",
            what=f"duration of a sync as its agent sees it, {what}; load average {load_1m:.1f}",
            unit="ms",
            value=1e3 * at[0.99],
            low=1e3 * at[0.5],
            high=1e3 * times[-1],
            target="<= 100",
        ),
        Claim(
            id="sync/rate",
            what="syncs answered a second, of one that each agent wants",
            unit="share",
            value=len(times) / seconds / agents,
            target=">= 0.9",
        ),
        Claim(
            id="sync/refused",
            what="syncs refused",
            unit="syncs",
            value=float(sum(measured.refused.values())),
        ),
        Claim(id="sync/cores", what="cores the control plane used", unit="cores", value=cores),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes `results/sync.json`."""
    parser = argparse.ArgumentParser(description="syncs of many agents")
    parser.add_argument("--agents", type=int, default=AGENTS)
    parser.add_argument("--seconds", type=float, default=MEASURED_S)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        measured, cores = measure(Path(name), agents=given.agents, seconds=given.seconds)
    claims = claims_of(measured, cores, agents=given.agents, seconds=given.seconds)
    command = shlex.join(["python", "-m", "benchmarks.sync", *(arguments or sys.argv[1:])])
    write_results(
        "sync",
        claims,
        command=command,
        seeds=[0],
        more={"commits": measured.commits, "refused": measured.refused},
    )
    print(render(claims))
    return 0


if __name__ == "__main__":
    sys.exit(main())
