"""A minimal stand-in for the control plane: an endless batch from memory, results counted.

It speaks docs/protocol.md to one agent, so that a benchmark's offline work reaches the agent as in
production while nothing else runs beside it. It is no control plane: it keeps nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from weir_cli.loadlab.control_setup import StubSetup, setup_from_json
from weir_cli.loadlab.workload import (
    OfflineLine,
    OfflineOrder,
    offline_supply,
)
from weir_controlplane.agents.pods import pod_kv
from weir_controlplane.agents.schemas import Telemetry
from weir_controlplane.forecast.choose import Forecast
from weir_controlplane.forecast.demand import Bucket, Demand
from weir_controlplane.forecast.methods import History, MeanSigma
from weir_controlplane.policy.decide import PolicyLimits, decide


@dataclass(kw_only=True)
class StubCounts:
    """What came back so far."""

    lines: int = 0
    errors: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    first_errors: list[str] = field(default_factory=list)
    telemetry: dict[str, Any] = field(default_factory=dict)

    def add(self, result: dict[str, Any]) -> None:
        """One line of an upload."""
        response = result.get("response") or {}
        self.lines += 1
        if result.get("error") or response.get("status_code") != 200:
            self.errors += 1
            if len(self.first_errors) < 5:
                self.first_errors.append(json.dumps(result)[:400])
        usage = result.get("usage") or {}
        self.input_tokens += int(usage.get("input_tokens") or 0)
        self.output_tokens += int(usage.get("output_tokens") or 0)


class ControlStub:
    """The stand-in's state and its calls; it hands nothing out before `POST /open`."""

    def __init__(self, setup: StubSetup) -> None:
        self.counts = StubCounts()
        self._setup = setup
        self._supply: Callable[[], OfflineLine] = offline_supply(
            setup.shape, seed=setup.seed, order=OfflineOrder.PREFIX
        )
        self._chunks: dict[str, list[OfflineLine]] = {}
        self._handed_out = 0
        self._opened = False
        self._uploads: dict[str, bytes] = {}
        self._past: list[Bucket] = []

    def app(self) -> Starlette:
        """The HTTP application."""
        chunk = "/internal/v1/chunks/{chunk_id}"
        return Starlette(
            routes=[
                Route("/healthz", self._health),
                Route("/stats", self._stats),
                Route("/open", self._open, methods=["POST"]),
                Route("/internal/v1/agents/{agent_id}/sync", self._sync, methods=["POST"]),
                Route(f"{chunk}/lines", self._lines),
                Route(f"{chunk}/results", self._results, methods=["PUT"]),
                Route(f"{chunk}/commit", self._commit, methods=["POST"]),
            ]
        )

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _open(self, _: Request) -> Response:
        self._opened = True
        return JSONResponse({"status": "open"})

    async def _stats(self, _: Request) -> Response:
        return JSONResponse(vars(self.counts))

    async def _sync(self, request: Request) -> Response:
        body = await request.json()
        self.counts.telemetry = body.get("telemetry") or {}
        held = {chunk["chunk_id"] for chunk in body["chunks"]}
        for returned in body.get("returned") or ():
            self._chunks.pop(returned["chunk_id"], None)
        leases: list[dict[str, Any]] = []
        room = body["room"]["lines"] if self._opened and body["state"] == "serving" else 0
        while (
            len(held) + len(leases) < self._setup.chunks_held
            and room >= (len(leases) + 1) * self._setup.chunk_lines
        ):
            leases.append(self._lease())
        policy = self._setup.policy
        blocks = self._blocks() if policy.forecasts else policy.offline_kv_blocks
        return JSONResponse(
            {
                "incarnation": 1,
                "next_sync_s": 1.0,
                "policy": {
                    "lease_s": policy.lease_s,
                    "offline_kv_blocks": blocks,
                    "offline_seq_slots": policy.offline_seq_slots,
                    "step_budget_s": None,
                    "forecast": {"method": "fixed", "online_kv_blocks": 0},
                },
                "chunks": leases,
                "lost": [chunk for chunk in sorted(held) if chunk not in self._chunks],
                "cancel": [],
                "deaths_accepted": [death["death_id"] for death in body.get("deaths") or ()],
                "adopted": [],
            }
        )

    def _blocks(self) -> int:
        told = Telemetry.model_validate(self.counts.telemetry)
        if told.total_blocks == 0:
            return 0
        self._past.append(Bucket.of(float(len(self._past)), told.online_kv_blocks, length_s=1))
        history = History(recent=Demand.of(self._past), days=Demand.of(()))
        expected = MeanSigma(min_buckets=1).forecast_blocks(history, float(len(self._past)))
        granted = decide(
            pod_kv(told),
            Forecast(method="mean_sigma", online_kv_blocks=round(expected or 0.0), scores=()),
            PolicyLimits(max_offline_fraction=1.0),
        )
        return min(granted.offline_kv_blocks, self._setup.policy.offline_kv_blocks)

    def _lease(self) -> dict[str, Any]:
        self._handed_out += 1
        chunk_id = f"chunk-{self._handed_out}"
        lines = [self._supply() for _ in range(self._setup.chunk_lines)]
        self._chunks[chunk_id] = lines
        return {
            "chunk_id": chunk_id,
            "attempt": 1,
            "nonce": hashlib.sha256(chunk_id.encode()).hexdigest()[:16],
            "lease_s": 90.0,
            "batch_id": "batch_stand_in",
            "tenant": "stand-in",
            "service": "default",
            "model": self._setup.model,
            "revision": "",
            "endpoint": "/v1/completions",
            "lines": len(lines),
            "bytes": sum(len(line.prompt) + 200 for line in lines),
            "tokens": sum(len(line.prompt) + line.max_tokens for line in lines),
            "density": None,
            "prefix_group": None,
            "remaining_lines": None,
            "deadline_s": 86_400.0,
            "solo": False,
        }

    async def _lines(self, request: Request) -> Response:
        lines = self._chunks.get(request.path_params["chunk_id"])
        if lines is None:
            return _stale()
        after, limit = int(request.query_params["after"]), int(request.query_params["limit"])
        body = "".join(
            json.dumps(
                {
                    "line": number,
                    "custom_id": line.custom_id,
                    "url": "/v1/completions",
                    "body": {
                        "model": self._setup.model,
                        "prompt": line.prompt,
                        "max_tokens": line.max_tokens,
                        "temperature": 0.0,
                    },
                }
            )
            + "\n"
            for number, line in enumerate(lines, start=1)
            if after < number <= after + limit
        )
        return Response(body, media_type="application/x-ndjson")

    async def _results(self, request: Request) -> Response:
        if request.path_params["chunk_id"] not in self._chunks:
            return _stale()
        body = await request.body()
        digest = hashlib.sha256(body).hexdigest()
        if digest != request.query_params["sha256"]:
            error = {"message": "the body's hash differs", "code": "hash_mismatch"}
            return JSONResponse({"error": error}, status_code=400)
        self._uploads[digest] = body
        return JSONResponse({"upload_id": digest}, status_code=201)

    async def _commit(self, request: Request) -> Response:
        body = await request.json()
        self._chunks.pop(request.path_params["chunk_id"], None)
        for line in self._uploads.pop(body["upload_id"], b"").splitlines():
            self.counts.add(json.loads(line))
        return JSONResponse({"state": "accepted"})


def _stale() -> Response:
    error = {"message": "not a lease of this stand-in", "code": "stale_lease"}
    return JSONResponse({"error": error}, status_code=409)


def main() -> None:
    """Runs the stand-in: ``python -m weir_cli.loadlab.control_stub --port N --setup JSON``."""
    parser = argparse.ArgumentParser(description="stand-in control plane for benchmarks")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--setup", required=True)
    given = parser.parse_args()
    stub = ControlStub(setup_from_json(given.setup))
    uvicorn.run(
        stub.app(),
        host="127.0.0.1",
        port=given.port,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,  # as the control plane's: an agent's call must not meet a close
    )


if __name__ == "__main__":
    main()
