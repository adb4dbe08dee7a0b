"""What Weir's scheduler costs an engine that serves online requests only.

Stock API servers, equal but for `--scheduler-cls`, loaded in turn over HTTP: repeats are
interleaved, so that the machine's drift meets both, and there are some of each, since two engine
processes of one kind differ by themselves. With many clients steps are long; with one the fixed
cost of a step weighs most. `python -m benchmarks.bridge_overhead`
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import os
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
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
    ServerSpec,
    available_cores,
    end_in_order_on_sigterm,
    free_port,
    start_server,
)
from weir_cli.loadlab.records import RequestRecord, latency_stats, token_gaps_s
from weir_cli.loadlab.workload import pseudo_text

PROMPT_TOKENS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """A closed loop: so many clients answer so many requests of so many output tokens."""

    clients: int
    requests: int
    output_tokens: int


FULL = Load(clients=16, requests=48, output_tokens=48)
ALONE = Load(clients=1, requests=6, output_tokens=96)
LOADS = {"": FULL, "one-client-": ALONE}


@dataclass(frozen=True, kw_only=True, slots=True)
class Burst:
    """One closed-loop burst: output tokens a second and mean token gap."""

    tokens_per_s: float
    tbt_s: float


async def burst(server: Server, load: Load, source: random.Random) -> Burst:
    """Fresh prompts by the load's clients.

    Raises:
        RuntimeError: a request failed.
    """
    target = Target(host=server.host, port=server.port, model=MODEL, extra={"ignore_eos": True})
    prompts = [pseudo_text(source, PROMPT_TOKENS) for _ in range(load.requests)]
    records: list[RequestRecord] = []

    async def client() -> None:
        while prompts:
            prompt = prompts.pop()
            due_s = time.monotonic()
            records.append(await send(target, "r", prompt, load.output_tokens, due_s=due_s))

    started_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(load.clients):
            group.create_task(client())
    failed = [record.error for record in records if record.error]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    took_s = time.monotonic() - started_s
    gaps = latency_stats(gap for record in records for gap in token_gaps_s(record))
    return Burst(tokens_per_s=load.requests * load.output_tokens / took_s, tbt_s=gaps.mean_s)


Pairs = list[tuple[Burst, Burst]]


async def compare(model: Path, folder: Path, *, repeats: int, servers: int) -> dict[str, Pairs]:
    """Pairs of bursts by load, stock and Weir, in alternating order; the first of each warms up.

    ``servers`` of each kind; those that were started one after the other are a pair.
    """
    cores = available_cores()
    started: list[Server] = []
    try:
        for number in range(servers):
            for spec in _stock_and_weir(model):
                log = folder / f"{number}-{spec.port}.log"
                started.append(await start_server(spec, log))
        for server in started:
            server.pin(cores)
        os.sched_setaffinity(0, {cores.client})
        couples = list(zip(started[::2], started[1::2], strict=True))
        measured: dict[str, Pairs] = {name: [] for name in LOADS}
        for repeat, (name, load) in itertools.product(range(repeats + 1), LOADS.items()):
            pairs = [await _pair(couple, load, repeat) for couple in couples]
            if repeat:
                measured[name] += pairs
        return measured
    finally:
        for server in started:
            await server.stop()


def _stock_and_weir(model: Path) -> tuple[ServerSpec, ServerSpec]:
    stock, equal = (stock_server(model, EngineSetup(), free_port()) for _ in range(2))
    command = [*equal.command, "--scheduler-cls", SCHEDULER_CLS]
    return stock, dataclasses.replace(equal, command=command)


async def _pair(couple: tuple[Server, Server], load: Load, repeat: int) -> tuple[Burst, Burst]:
    bursts = {}
    for index in (0, 1) if repeat % 2 else (1, 0):
        bursts[index] = await burst(couple[index], load, random.Random(repeat))  # noqa: S311
    return bursts[0], bursts[1]


def claims_of(measured: Mapping[str, Sequence[tuple[Burst, Burst]]]) -> list[Claim]:
    """Overhead in percent, the median over pairs, by load."""
    return [claim for name in LOADS for claim in _claims(name, LOADS[name], measured[name])]


def _claims(prefix: str, load: Load, pairs: Sequence[tuple[Burst, Burst]]) -> list[Claim]:
    rates = sorted(100 * (stock.tokens_per_s / weir.tokens_per_s - 1) for stock, weir in pairs)
    gaps = sorted(100 * (weir.tbt_s / stock.tbt_s - 1) for stock, weir in pairs)
    return [
        Claim(
            id=f"bridge/{prefix}{name}",
            what=f"{what} added by Weir's scheduler to an online-only engine, {load.clients} "
            f"client{'s' * (load.clients > 1)}",
            unit="%",
            value=median(values),
            low=values[0],
            high=values[-1],
            target="<= 3",
        )
        for name, what, values in (
            ("time-per-token", "time per output token", rates),
            ("mean-tbt", "mean TBT", gaps),
        )
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes `results/bridge_overhead.json`."""
    parser = argparse.ArgumentParser(description="cost of Weir's scheduler in an online-only vLLM")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--servers", type=int, default=4, help="engines of each kind")
    given = parser.parse_args(arguments)
    end_in_order_on_sigterm()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sample_model(folder / "model")
        measured = asyncio.run(
            compare(folder / "model", folder, repeats=given.repeats, servers=given.servers)
        )
    claims = claims_of(measured)
    command = shlex.join(
        ["python", "-m", "benchmarks.bridge_overhead", *(arguments or sys.argv[1:])]
    )
    write_results(
        "bridge_overhead",
        claims,
        command=command,
        seeds=list(range(1, given.repeats + 1)),
        more={
            "pairs": {
                str(load.clients): [
                    {"stock": dataclasses.asdict(stock), "weir": dataclasses.asdict(weir)}
                    for stock, weir in measured[name]
                ]
                for name, load in LOADS.items()
            }
        },
    )
    print(render(claims))
    return 0


if __name__ == "__main__":
    sys.exit(main())
