"""What Weir's scheduler costs an engine that serves online requests only.

Two stock API servers, equal but for `--scheduler-cls`, loaded in turn over HTTP: repeats are
interleaved, so that the machine's drift meets both. `python -m benchmarks.bridge_overhead`
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.claims import Claim, render, write_results
from benchmarks.colocation.setup import MODEL, EngineSetup, stock_server
from weir_agent.sample_model import write_sample_model
from weir_agent.vllm_bridge import SCHEDULER_CLS
from weir_cli.loadlab.feeders import Target, send
from weir_cli.loadlab.processes import (
    Server,
    available_cores,
    end_in_order_on_sigterm,
    free_port,
    start_server,
)
from weir_cli.loadlab.records import RequestRecord, latency_stats, token_gaps_s
from weir_cli.loadlab.workload import pseudo_text

CLIENTS = 16
REQUESTS = 48
PROMPT_TOKENS = 200
OUTPUT_TOKENS = 48


@dataclass(frozen=True, kw_only=True, slots=True)
class Burst:
    """One closed-loop burst: output tokens a second and mean token gap."""

    tokens_per_s: float
    tbt_s: float


async def burst(server: Server, source: random.Random) -> Burst:
    """``REQUESTS`` fresh prompts by ``CLIENTS`` clients.

    Raises:
        RuntimeError: a request failed.
    """
    target = Target(host=server.host, port=server.port, model=MODEL, extra={"ignore_eos": True})
    prompts = [pseudo_text(source, PROMPT_TOKENS) for _ in range(REQUESTS)]
    records: list[RequestRecord] = []

    async def client() -> None:
        while prompts:
            prompt = prompts.pop()
            records.append(await send(target, "r", prompt, OUTPUT_TOKENS, due_s=time.monotonic()))

    started_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
    failed = [record.error for record in records if record.error]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    took_s = time.monotonic() - started_s
    gaps = latency_stats(gap for record in records for gap in token_gaps_s(record))
    return Burst(tokens_per_s=REQUESTS * OUTPUT_TOKENS / took_s, tbt_s=gaps.mean_s)


async def compare(model: Path, folder: Path, repeats: int) -> list[tuple[Burst, Burst]]:
    """Pairs of bursts, stock and Weir, in alternating order; the first pair warms up."""
    cores = available_cores()
    servers: list[Server] = []
    try:
        for name in ("stock", "weir"):
            spec = stock_server(model, EngineSetup(), free_port())
            if name == "weir":
                spec = dataclasses.replace(
                    spec, command=[*spec.command, "--scheduler-cls", SCHEDULER_CLS]
                )
            servers.append(await start_server(spec, folder / f"{name}.log"))
        for server in servers:
            server.pin(cores)
        os.sched_setaffinity(0, {cores.client})
        pairs = []
        for repeat in range(repeats + 1):
            bursts = {}
            for index in (0, 1) if repeat % 2 else (1, 0):
                bursts[index] = await burst(servers[index], random.Random(repeat))  # noqa: S311
            pairs.append((bursts[0], bursts[1]))
        return pairs[1:]
    finally:
        for server in servers:
            await server.stop()


def claims_of(pairs: Sequence[tuple[Burst, Burst]]) -> list[Claim]:
    """Overhead in percent, the median over pairs."""
    rates = sorted(100 * (stock.tokens_per_s / weir.tokens_per_s - 1) for stock, weir in pairs)
    gaps = sorted(100 * (weir.tbt_s / stock.tbt_s - 1) for stock, weir in pairs)
    return [
        Claim(
            id=f"bridge/{name}",
            what=f"{what} added by Weir's scheduler to an online-only engine",
            unit="%",
            value=median(values),
            low=values[0],
            high=values[-1],
            target="<= 3",
        )
        for name, what, values in (
            ("time-per-token", "time per output token at full load", rates),
            ("mean-tbt", "mean TBT", gaps),
        )
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes `results/bridge_overhead.json`."""
    parser = argparse.ArgumentParser(description="cost of Weir's scheduler in an online-only vLLM")
    parser.add_argument("--repeats", type=int, default=10)
    given = parser.parse_args(arguments)
    end_in_order_on_sigterm()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sample_model(folder / "model")
        pairs = asyncio.run(compare(folder / "model", folder, given.repeats))
    claims = claims_of(pairs)
    command = shlex.join(
        ["python", "-m", "benchmarks.bridge_overhead", *(arguments or sys.argv[1:])]
    )
    write_results(
        "bridge_overhead",
        claims,
        command=command,
        seeds=list(range(1, given.repeats + 1)),
        more={
            "pairs": [
                {"stock": dataclasses.asdict(stock), "weir": dataclasses.asdict(weir)}
                for stock, weir in pairs
            ]
        },
    )
    print(render(claims))
    return 0


if __name__ == "__main__":
    sys.exit(main())
