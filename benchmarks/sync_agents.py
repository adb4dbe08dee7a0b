"""Agents of the sync benchmark: each syncs once a second, holds chunks, uploads and commits them.

One process plays all of them beside the server, so each call is made as cheap as can be.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

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
    """What all agents saw. Latencies in seconds, of syncs sent after the ramp and not refused.

    ``refused`` and ``commits`` count from the start, by what the answer was.
    """

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
        took_s = time.monotonic() - begun_s
        if status != 200:
            why = f"{status} {json.loads(answer)['error']['code']}"
            self._measured.refused[why] = self._measured.refused.get(why, 0) + 1
            return self._source.uniform(1.0, 5.0)
        if begun_s >= self._measured.from_s:
            self._measured.latencies_s.append(took_s)
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
