"""Where an agent's offline work comes from: a stand-in with an endless batch, or the real thing.

The stand-in keeps the measurement free of the control plane's own work on the clients' core; the
real one validates it end to end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Protocol

from benchmarks.colocation.setup import CPU, MODEL, Host, environment
from weir_cli.api import Api
from weir_cli.loadlab.control_setup import StubPolicy, StubSetup, setup_to_json
from weir_cli.loadlab.processes import Server, ServerSpec, free_port, pin_process, start_server
from weir_cli.loadlab.streaming import exchange
from weir_cli.loadlab.workload import OfflineOrder, OfflineShape, offline_pass
from weir_cli.models import KeyRequest
from weir_cli.settings import ClientSettings

OFFLINE_KV_SHARE = 0.9
REAL_BATCHES = 3


class Control(Protocol):
    """What a run needs of a control plane."""

    @property
    def port(self) -> int:
        """Where agents call."""

    @property
    def agent_key(self) -> str:
        """With which agents call."""

    async def open(self) -> None:
        """Offers the work; before this an agent gets none."""

    async def stats(self) -> dict[str, Any]:
        """What came back, for the run's file."""

    async def stop(self) -> None:
        """Ends it."""


class StandIn:
    """`weir_cli.loadlab.control_stub` as a process."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @classmethod
    async def start(
        cls,
        shape: OfflineShape,
        *,
        seed: int,
        core: int,
        log: Path,
        forecasts: bool = False,
        host: Host = CPU,
    ) -> StandIn:
        """Starts without work to hand out; see ``StubPolicy`` for ``forecasts``."""
        port = free_port()
        setup = StubSetup(
            model=MODEL,
            shape=shape,
            seed=seed,
            policy=StubPolicy(
                offline_kv_blocks=int(host.blocks * OFFLINE_KV_SHARE),
                offline_seq_slots=host.sequences,
                forecasts=forecasts,
            ),
        )
        command = [sys.executable, "-m", "weir_cli.loadlab.control_stub"]
        command += ["--port", str(port), "--setup", setup_to_json(setup)]
        spec = ServerSpec(
            command=command, environment=environment(), port=port, ready_path="/healthz"
        )
        server = await start_server(spec, log)
        pin_process(server.pid, core)
        return cls(server)

    @property
    def port(self) -> int:
        """Where agents call."""
        return self._server.port

    @property
    def agent_key(self) -> str:
        """Anything: it asks for none."""
        return "benchmark"

    async def open(self) -> None:
        """Lets it deal."""
        await exchange(self._server.host, self.port, "POST", "/open")

    async def stats(self) -> dict[str, Any]:
        """Lines, errors and the last telemetry."""
        answer = await exchange(self._server.host, self.port, "GET", "/stats")
        stats: dict[str, Any] = json.loads(answer.body)
        return stats

    async def stop(self) -> None:
        """Ends the process."""
        await self._server.stop(grace_s=2.0)


class RealControl:
    """`weir serve controlplane` with a database of its own, fed by batches of the workload."""

    def __init__(self, server: Server, shape: OfflineShape, *, seed: int, admin_key: str) -> None:
        self._server = server
        self._shape = shape
        self._seed = seed
        self._batches: list[str] = []
        with_admin = self._api(admin_key)
        with_admin.create_tenant("benchmark")
        self._tenant = self._api(
            with_admin.create_key(KeyRequest(scope="tenant", tenant="benchmark")).key
        )
        self.agent_key = with_admin.create_key(KeyRequest(scope="agent", agent_id="benchmark")).key
        with_admin.close()

    @classmethod
    async def start(cls, shape: OfflineShape, *, seed: int, core: int, log: Path) -> RealControl:
        """Starts without any batch."""
        port = free_port()
        data_dir = log.parent / f"controlplane-{port}"
        spec = ServerSpec(
            command=[sys.executable, "-m", "weir_cli", "serve", "controlplane"],
            environment={
                **environment(),
                "WEIR_PORT": str(port),
                "WEIR_DATA_DIR": str(data_dir),
                "WEIR_MODELS": MODEL,
                "WEIR_LOG_LEVEL": "warning",
            },
            port=port,
            ready_path="/readyz",
        )
        server = await start_server(spec, log)
        pin_process(server.pid, core)
        return cls(
            server,
            shape,
            seed=seed,
            admin_key=(data_dir / "admin.key").read_text().strip(),
        )

    @property
    def port(self) -> int:
        """Where agents call."""
        return self._server.port

    def _api(self, key: str) -> Api:
        url = f"http://127.0.0.1:{self._server.port}"
        return Api(ClientSettings.model_validate({"url": url, "api_key": key}))

    async def open(self) -> None:
        """Submits the batches, in shuffled order: sorting by prefix is the control plane's work."""
        for number in range(REAL_BATCHES):
            lines = offline_pass(
                self._shape, seed=self._seed, order=OfflineOrder.SHUFFLED, number=number
            )
            path = self._server.log.with_suffix(f".{number}.jsonl")
            path.write_text(
                "".join(
                    json.dumps(
                        {
                            "custom_id": line.custom_id,
                            "method": "POST",
                            "url": "/v1/completions",
                            "body": {
                                "model": MODEL,
                                "prompt": line.prompt,
                                "max_tokens": line.max_tokens,
                                "temperature": 0.0,
                            },
                        }
                    )
                    + "\n"
                    for line in lines
                )
            )
            self._batches.append(await asyncio.to_thread(self._submit, path))

    def _submit(self, path: Path) -> str:
        with path.open("rb") as content:
            file_id = self._tenant.upload(path.name, content)
        return self._tenant.create_batch(file_id, "/v1/completions", "24h", {}).id

    async def stats(self) -> dict[str, Any]:
        """Each batch's status and counts."""
        batches = [await asyncio.to_thread(self._tenant.batch, name) for name in self._batches]
        return {"batches": [batch.model_dump(mode="json") for batch in batches]}

    async def stop(self) -> None:
        """Ends the process."""
        self._tenant.close()
        await self._server.stop(grace_s=5.0)
