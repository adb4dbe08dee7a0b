"""A control plane of one agent in memory that speaks docs/protocol.md."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse


@dataclass
class Chunk:
    """A chunk of lines ``first`` to ``last``."""

    chunk_id: str
    lines: list[dict[str, Any]]
    solo: bool = False
    attempt: int = 0
    nonce: str = ""
    state: str = "open"  # open, leased, closed


@dataclass
class FakeControlPlane:
    """State that tests read and set; ``app`` serves it."""

    tenant: str = "acme"
    policy: dict[str, Any] | None = field(
        default_factory=lambda: {
            "lease_s": 10.0,
            "offline_kv_blocks": 700,
            "offline_seq_slots": 4,
            "step_budget_s": None,
            "forecast": {"method": "mean_sigma", "online_kv_blocks": 5},
        }
    )
    next_sync_s: float = 0.02
    lease_work: bool = True
    down: bool = False
    fail_uploads: int = 0
    hold_uploads: asyncio.Event | None = None  # until it is set, none is answered
    hold_syncs: asyncio.Event | None = None  # the same, after leases were given
    lose_commit_replies: int = 0
    lose_uploads: int = 0
    bodies: int = 0  # of results that arrived
    chunks: dict[str, Chunk] = field(default_factory=dict)
    results: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    uploads: dict[str, tuple[str, list[dict[str, Any]]]] = field(default_factory=dict)
    syncs: list[dict[str, Any]] = field(default_factory=list)
    deaths: dict[str, dict[str, Any]] = field(default_factory=dict)
    cancel: dict[str, str] = field(default_factory=dict)
    commits: list[dict[str, Any]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)  # chunks whose input the store cannot give
    boot_id: str = ""
    incarnation: int = 0
    sequence: int = 0

    def add_chunk(self, lines: list[dict[str, Any]], *, solo: bool = False) -> str:
        chunk_id = f"chunk-{len(self.chunks)}"
        self.chunks[chunk_id] = Chunk(chunk_id=chunk_id, lines=lines, solo=solo)
        return chunk_id

    @property
    def done(self) -> bool:
        return all(chunk.state == "closed" for chunk in self.chunks.values())

    @property
    def app(self) -> FastAPI:
        app = FastAPI()
        app.post("/internal/v1/agents/{agent_id}/sync", response_model=None)(self._sync)
        app.get("/internal/v1/chunks/{chunk_id}/lines", response_model=None)(self._lines)
        app.put("/internal/v1/chunks/{chunk_id}/results", response_model=None)(self._results)
        app.post("/internal/v1/chunks/{chunk_id}/commit", response_model=None)(self._commit)
        return app

    async def _sync(self, agent_id: str, request: Request) -> Response:
        if self.down:
            return _error(503, "overloaded")
        said = await request.json()
        self.syncs.append({**said, "agent_id": agent_id})
        adopted: list[dict[str, Any]] = []
        if said["boot_id"] != self.boot_id:
            if said["incarnation"] is not None:
                return _error(409, "stale_incarnation")
            self.boot_id, self.incarnation, self.sequence = (
                said["boot_id"],
                self.incarnation + 1,
                0,
            )
            adopted = [self._lease(c) for c in self.chunks.values() if c.state == "leased"]
        elif said["incarnation"] not in {None, self.incarnation}:
            return _error(409, "stale_incarnation")
        if said["sequence"] <= self.sequence:
            return _error(409, "stale_sequence")
        self.sequence = said["sequence"]
        for death in said["deaths"]:
            self.deaths[death["death_id"]] = death
        self._take_back(said["returned"])
        leases = [] if adopted else self._new_leases(said)
        lost, self.lost = self.lost, []
        reply = {
            "incarnation": self.incarnation,
            "next_sync_s": self.next_sync_s,
            "policy": self.policy,
            "chunks": leases,
            "lost": lost,
            "cancel": [
                {"chunk_id": chunk_id, "reason": reason}
                for chunk_id, reason in self.cancel.items()
                if self.chunks[chunk_id].state == "leased"
            ],
            "deaths_accepted": [death["death_id"] for death in said["deaths"]],
            "adopted": adopted,
        }
        if self.hold_syncs is not None:
            await self.hold_syncs.wait()
        return JSONResponse(reply)

    def _take_back(self, returned: list[dict[str, Any]]) -> None:
        for lease in returned:
            chunk = self.chunks[lease["chunk_id"]]
            if chunk.state == "leased" and chunk.nonce == lease["nonce"]:
                chunk.state = "open"

    def _new_leases(self, said: dict[str, Any]) -> list[dict[str, Any]]:
        leases: list[dict[str, Any]] = []
        if said["state"] != "serving" or not self.lease_work:
            return leases
        room = said["room"]["lines"]
        for chunk in self.chunks.values():
            if chunk.state == "open" and len(chunk.lines) <= room:
                room -= len(chunk.lines)
                leases.append(self._lease(chunk))
        return leases

    def _lease(self, chunk: Chunk) -> dict[str, Any]:
        chunk.attempt += 1
        chunk.nonce = secrets.token_hex(8)
        chunk.state = "leased"
        return {
            "chunk_id": chunk.chunk_id,
            "attempt": chunk.attempt,
            "nonce": chunk.nonce,
            "lease_s": 90.0,
            "batch_id": "batch-1",
            "tenant": self.tenant,
            "service": "default",
            "model": "sample",
            "revision": "",
            "endpoint": "/v1/completions",
            "lines": len(chunk.lines),
            "bytes": 100,
            "tokens": 10 * len(chunk.lines),
            "density": 1.0,
            "prefix_group": "group",
            "remaining_lines": len(chunk.lines),
            "deadline_s": 3600.0,
            "solo": chunk.solo,
        }

    async def _lines(
        self, chunk_id: str, attempt: int, nonce: str, after: int, limit: int
    ) -> Response:
        chunk = self.chunks[chunk_id]
        if (chunk.attempt, chunk.nonce, chunk.state) != (attempt, nonce, "leased"):
            return _error(409, "stale_lease")
        if chunk_id in self.unreadable:
            return _error(503, "storage_unavailable")
        page = [line for line in chunk.lines if line["line"] > after][:limit]
        body = "".join(json.dumps(line) + "\n" for line in page)
        return Response(body, media_type="application/x-ndjson")

    async def _results(
        self, chunk_id: str, attempt: int, nonce: str, sha256: str, lines: int, request: Request
    ) -> Response:
        if self.down:
            return _error(503, "overloaded")
        if self.fail_uploads:
            self.fail_uploads -= 1
            return _error(507, "storage_full")
        if self.hold_uploads is not None:
            await self.hold_uploads.wait()
        chunk = self.chunks[chunk_id]
        body = await request.body()
        self.bodies += 1
        if (chunk.attempt, chunk.nonce, chunk.state) != (attempt, nonce, "leased"):
            return _error(409, "stale_lease")
        if hashlib.sha256(body).hexdigest() != sha256:
            return _error(400, "hash_mismatch")
        records = [json.loads(record) for record in body.splitlines()]
        numbers = [record["line"] for record in records]
        if len(records) != lines or numbers != sorted(set(numbers)):
            return _error(400, "line_mismatch")
        upload_id = f"upload-{sha256[:12]}"
        self.uploads[upload_id] = (chunk_id, records)
        return JSONResponse({"upload_id": upload_id}, status_code=201)

    async def _commit(self, chunk_id: str, request: Request) -> Response:
        said = await request.json()
        chunk = self.chunks[chunk_id]
        if self.lose_uploads:
            self.lose_uploads -= 1
            return _error(400, "unknown_upload")
        _, records = self.uploads[said["upload_id"]]
        if (chunk.attempt, chunk.nonce) != (said["attempt"], said["nonce"]):
            return JSONResponse({"state": "stale"})
        if chunk.state == "closed":
            return JSONResponse({"state": "accepted"})
        numbers = {line for first, last in said["lines"] for line in range(first, last + 1)}
        rest = [line for line in chunk.lines if line["line"] not in numbers]
        if numbers != {record["line"] for record in records} or (said["final"] and rest):
            return _error(400, "line_mismatch")
        self.commits.append({**said, "chunk_id": chunk_id})
        for record in records:
            self.results.setdefault(record["line"], []).append(record)
        chunk.state = "closed"
        if rest and self.cancel.get(chunk_id) not in {"cancelled", "expired"}:
            self.add_chunk(rest)
        if self.lose_commit_replies:
            self.lose_commit_replies -= 1
            return _error(500, "lost")
        return JSONResponse({"state": "accepted"})


def _error(status: int, code: str) -> Response:
    body = {"error": {"message": code, "type": "error", "param": None, "code": code}}
    return JSONResponse(body, status_code=status)


def completion_lines(count: int, *, first: int = 1, max_tokens: int = 4) -> list[dict[str, Any]]:
    """Input lines that ask for completions."""
    return [
        {
            "line": number,
            "custom_id": f"id-{number}",
            "url": "/v1/completions",
            "body": {"model": "sample", "prompt": f"prompt {number}", "max_tokens": max_tokens},
        }
        for number in range(first, first + count)
    ]
