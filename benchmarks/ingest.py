"""How fast a large batch is taken in: 50,000 lines, 200 MB, from create to `in_progress`.

A real control plane (SQLite, files in a folder) as a process, without an agent.
`python -m benchmarks.ingest`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import bounds
from benchmarks.claims import Claim, render, write_results
from weir_cli.api import Api
from weir_cli.loadlab.processes import Server, ServerSpec, free_port, start_server
from weir_cli.loadlab.workload import pseudo_text
from weir_cli.models import KeyRequest
from weir_cli.settings import ClientSettings

LINES = 50_000
LINE_BYTES = 4_100
MODEL = "sample"
MIB_BYTES = 1 << 20
TIMEOUT_S = 300.0
# The first batch of a process fills caches and pools once; growth is counted over a second batch.
FLAT_MIB = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Ingest:
    """One batch: seconds of the upload, seconds from create to `in_progress`, peak memory after."""

    upload_s: float
    ingest_s: float
    peak_bytes: int


def write_input(path: Path, *, lines: int, seed: int) -> int:
    """A batch file over shared documents; returns its size in bytes."""
    source = random.Random(seed)  # noqa: S311 - load, not secrets
    documents = [pseudo_text(source, LINE_BYTES - 400) for _ in range(100)]
    with path.open("w", encoding="utf-8") as file:
        for index in range(lines):
            prompt = documents[index % 100] + pseudo_text(source, 200)
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 16, "temperature": 0.0}
            line = {"custom_id": f"l-{index}", "method": "POST", "url": "/v1/completions"}
            file.write(json.dumps({**line, "body": body}) + "\n")
    return path.stat().st_size


def ingest(api: Api, server: Server, path: Path) -> Ingest:
    """Uploads, creates, waits for `in_progress`.

    Raises:
        RuntimeError: the batch failed, or was not taken in within five minutes.
    """
    started_s = time.monotonic()
    with path.open("rb") as content:
        file_id = api.upload(path.name, content)
    uploaded_s = time.monotonic()
    batch = api.create_batch(file_id, "/v1/completions", "24h", {})
    while batch.status == "validating":
        if time.monotonic() - uploaded_s > TIMEOUT_S:
            raise RuntimeError(f"still validating after {TIMEOUT_S:.0f} s")
        time.sleep(0.1)
        batch = api.batch(batch.id)
    if batch.status != "in_progress":
        raise RuntimeError(f"the batch is {batch.status}: {batch.errors}")
    return Ingest(
        upload_s=uploaded_s - started_s,
        ingest_s=time.monotonic() - uploaded_s,
        peak_bytes=peak_bytes(server.pid),
    )


def peak_bytes(pid: int) -> int:
    """The most memory that the process ever held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 0


def measure(folder: Path, *, lines: int, repeats: int) -> tuple[int, list[Ingest]]:
    """The input's size, and one result a batch."""
    size_bytes = write_input(folder / "input.jsonl", lines=lines, seed=0)
    port = free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("WEIR_")},
        "WEIR_PORT": str(port),
        "WEIR_DATA_DIR": str(folder / "data"),
        "WEIR_MODELS": MODEL,
        "WEIR_LOG_LEVEL": "warning",
        "WEIR_MAX_FILE_BYTES": str(2 * size_bytes),
        "WEIR_TENANT_MAX_QUEUED_TOKENS": str(10**12),
    }
    command = [sys.executable, "-m", "weir_cli", "serve", "controlplane"]
    spec = ServerSpec(command=command, environment=environment, port=port, ready_path="/readyz")
    server = asyncio.run(start_server(spec, folder / "controlplane.log"))
    try:
        url = f"http://127.0.0.1:{port}"
        admin_key = (folder / "data" / "admin.key").read_text().strip()
        admin = Api(ClientSettings.model_validate({"url": url, "api_key": admin_key}))
        admin.create_tenant("benchmark")
        key = admin.create_key(KeyRequest(scope="tenant", tenant="benchmark")).key
        admin.close()
        api = Api(ClientSettings.model_validate({"url": url, "api_key": key}))
        results = [ingest(api, server, folder / "input.jsonl") for _ in range(repeats)]
        api.close()
    finally:
        asyncio.run(server.stop())
    return size_bytes, results


def claims_of(size_bytes: int, results: Sequence[Ingest], lines: int) -> list[Claim]:
    """Time to `in_progress`, and what a further batch adds to the peak memory."""
    times = sorted(result.ingest_s for result in results)
    growth = (results[-1].peak_bytes - results[0].peak_bytes) / MIB_BYTES
    what = f"a batch of {lines:,} lines, {size_bytes / 1e6:.0f} MB"
    return [
        Claim(
            id="ingest/time",
            what=f"from create to in_progress, {what}",
            unit="s",
            value=times[len(times) // 2],
            low=times[0],
            high=times[-1],
            baseline=results[0].upload_s,
            target="<= 10",
        ),
        Claim(
            id="ingest/memory-growth",
            what=f"peak memory added by {len(results) - 1} more batches after the first, {what}",
            unit="MiB",
            value=growth,
            baseline=results[0].peak_bytes / MIB_BYTES,
            target=f"<= {FLAT_MIB}",
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes `results/ingest.json`."""
    parser = argparse.ArgumentParser(description="ingest of a large batch")
    parser.add_argument("--lines", type=bounds.count, default=LINES)
    parser.add_argument("--repeats", type=bounds.count, default=3)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        size_bytes, results = measure(Path(name), lines=given.lines, repeats=given.repeats)
    claims = claims_of(size_bytes, results, given.lines)
    command = shlex.join(["python", "-m", "benchmarks.ingest", *(arguments or sys.argv[1:])])
    write_results("ingest", claims, command=command, seeds=[0])
    print(render(claims))
    return 0


if __name__ == "__main__":
    sys.exit(main())
