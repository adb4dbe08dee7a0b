"""How long a sync takes when 1,000 agents call once a second, on PostgreSQL, while chunks move.

Every agent holds a chunk for a while, fetches its lines, uploads results and commits. Server,
database and agents share the machine. `python -m benchmarks.sync`
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from benchmarks import bounds
from benchmarks.claims import Claim, render, write_results
from benchmarks.sync_agents import LINES_A_CHUNK, MODEL, RAMP_S, Measured, load
from tests.support.postgres import PostgresServer
from weir_cli.api import Api
from weir_cli.loadlab.process_tree import cpu_s
from weir_cli.loadlab.processes import ServerSpec, free_port, start_server
from weir_cli.models import KeyRequest
from weir_cli.settings import ClientSettings

AGENTS = 1000
MEASURED_S = 60.0


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
            used_s, begun_s = cpu_s(server.pid), time.monotonic()
            # The agents share the machine with the server, and their pauses would count as its own.
            gc.freeze()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                measured = runner.run(load(port, key, agents=agents, seconds=seconds))
            cores = (cpu_s(server.pid) - used_s) / (time.monotonic() - begun_s)
        finally:
            asyncio.run(server.stop())
    finally:
        postgres.close()
    return measured, cores


def claims_of(measured: Measured, cores: float, *, agents: int, seconds: float) -> list[Claim]:
    """The tail latency, the rate that was reached, and what it cost."""
    times = sorted(measured.latencies_s)
    at = {share: times[min(len(times) - 1, int(share * len(times)))] for share in (0.5, 0.99)}
    load_1m = os.getloadavg()[0]
    committed = measured.commits.get("accepted", 0)
    what = f"{agents} agents, {committed} chunks committed, the {RAMP_S:.0f} s before included"
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
            target="== 0",
        ),
        Claim(id="sync/cores", what="cores the control plane used", unit="cores", value=cores),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes `results/sync.json`."""
    parser = argparse.ArgumentParser(description="syncs of many agents")
    parser.add_argument("--agents", type=bounds.count, default=AGENTS)
    parser.add_argument("--seconds", type=bounds.seconds, default=MEASURED_S)
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
