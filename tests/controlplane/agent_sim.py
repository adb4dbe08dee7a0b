"""A simulated agent: speaks the agent protocol over HTTP and answers lines with their custom_id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import httpx

Json = dict[str, Any]
BIG_ROOM = {"lines": 10_000, "tokens": 10_000_000, "result_bytes": 1 << 34}
USAGE = {"input_tokens": 10, "cached_tokens": 4, "output_tokens": 5, "reasoning_tokens": 1}


def telemetry(**given: object) -> Json:
    return {"window_s": 1.0, "total_blocks": 1000, "online_kv_blocks": 100, **given}


def result_line(line: int, echo: object) -> Json:
    return {
        "line": line,
        "request_id": f"r{line}",
        "response": {"status_code": 200, "request_id": f"r{line}", "body": {"echo": echo}},
        "error": None,
        "usage": USAGE,
    }


@dataclass
class SimAgent:
    """One process of an agent. ``restart`` makes the next one of the same agent."""

    client: httpx.AsyncClient
    agent_id: str
    service: str = "svc"
    model: str = "tiny"
    revision: str = ""
    boot: int = 1
    incarnation: int | None = None
    sequence: int = 0
    held: dict[str, Json] = field(default_factory=dict)
    returned: list[Json] = field(default_factory=list)
    deaths: list[Json] = field(default_factory=list)
    last: Json = field(default_factory=dict)

    async def post_sync(self, **given: object) -> httpx.Response:
        self.sequence += 1
        body: Json = {
            "boot_id": f"{self.agent_id}-boot-{self.boot}",
            "incarnation": self.incarnation,
            "sequence": self.sequence,
            "service": self.service,
            "models": [{"name": self.model, "revision": self.revision, "max_model_len": 4096}],
            "state": "serving",
            "room": BIG_ROOM,
            "chunks": [{**self._ref(lease), "lines_done": 0} for lease in self.held.values()],
            "returned": self.returned,
            "deaths": self.deaths,
            "telemetry": telemetry(),
        }
        path = f"/internal/v1/agents/{self.agent_id}/sync"
        return await self.client.post(path, json={**body, **given})

    async def sync(self, **given: object) -> Json:
        """A sync that is answered; takes over what the reply says."""
        response = await self.post_sync(**given)
        assert response.status_code == 200, response.text
        reply: Json = response.json()
        self.incarnation = reply["incarnation"]
        for chunk_id in reply["lost"]:
            self.held.pop(chunk_id, None)
        for lease in (*reply["adopted"], *reply["chunks"]):
            self.held[lease["chunk_id"]] = lease
        accepted = reply["deaths_accepted"]
        self.deaths = [item for item in self.deaths if item["death_id"] not in accepted]
        self.returned = []
        self.last = reply
        return reply

    async def ready(self) -> None:
        """The first sync, which issues the incarnation."""
        await self.sync()

    def restart(self) -> None:
        """Forgets everything, as a new process does."""
        self.boot += 1
        self.incarnation = None
        self.sequence = 0
        self.held = {}
        self.deaths = []

    def give_back(self, lease: Json) -> None:
        """Puts a lease into the next sync's ``returned``."""
        del self.held[lease["chunk_id"]]
        self.returned.append(self._ref(lease))

    def dies(self, death_id: str, resident: Collection[tuple[Json, int]], **given: object) -> None:
        """Puts a death into the next syncs. ``resident``: leases and lines."""
        lines = [
            {"chunk_id": lease["chunk_id"], "attempt": lease["attempt"], "line": line}
            for lease, line in resident
        ]
        death = {"death_id": death_id, "kind": "crash", "solo": False, "resident": lines}
        self.deaths.append({**death, **given})

    async def lines(self, lease: Json, **params: object) -> list[Json]:
        """The input lines of a lease, all pages."""
        found: list[Json] = []
        while True:
            after = found[-1]["line"] if found else 0
            query: Json = {**self._fence(lease), "after": after, "limit": 7, **params}
            path = f"/internal/v1/chunks/{lease['chunk_id']}/lines"
            response = await self.client.get(path, params=query)
            assert response.status_code == 200, response.text
            page = [json.loads(line) for line in response.text.splitlines()]
            if not page:
                return found
            found += page

    async def put_results(self, lease: Json, content: bytes, **params: object) -> httpx.Response:
        """Uploads a body of results."""
        query: Json = {
            **self._fence(lease),
            "sha256": hashlib.sha256(content).hexdigest(),
            "lines": content.count(b"\n"),
            **params,
        }
        path = f"/internal/v1/chunks/{lease['chunk_id']}/results"
        return await self.client.put(path, params=query, content=content)

    async def upload(self, lease: Json, results: list[Json]) -> str:
        """Uploads results; the id."""
        content = b"".join(json.dumps(item).encode() + b"\n" for item in results)
        response = await self.put_results(lease, content)
        assert response.status_code == 201, response.text
        return str(response.json()["upload_id"])

    async def post_commit(self, lease: Json, **given: object) -> httpx.Response:
        """Asks for a commit."""
        path = f"/internal/v1/chunks/{lease['chunk_id']}/commit"
        return await self.client.post(path, json={**self._fence(lease), **given})

    async def finish(self, lease: Json, *, only: Collection[int] | None = None) -> str:
        """Runs a lease's lines (or those in ``only``) and commits them; the answer."""
        lines = await self.lines(lease)
        wanted = [item for item in lines if only is None or item["line"] in only]
        results = [result_line(item["line"], item["custom_id"]) for item in wanted]
        upload_id = await self.upload(lease, results)
        response = await self.post_commit(
            lease,
            upload_id=upload_id,
            lines=[[item["line"], item["line"]] for item in wanted],
            final=len(wanted) == len(lines),
        )
        assert response.status_code == 200, response.text
        self.held.pop(lease["chunk_id"], None)
        return str(response.json()["state"])

    async def work(self) -> int:
        """One sync and everything that it hands out, committed; how many chunks."""
        await self.sync()
        leases = list(self.held.values())
        for lease in leases:
            assert await self.finish(lease) == "accepted"
        return len(leases)

    @staticmethod
    def _fence(lease: Json) -> Json:
        return {"attempt": lease["attempt"], "nonce": lease["nonce"]}

    def _ref(self, lease: Json) -> Json:
        return {"chunk_id": lease["chunk_id"], **self._fence(lease)}
