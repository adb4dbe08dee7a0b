"""Executes runs, each result kept as a file."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.colocation.arms import ONLINE_ONLY, Run
from benchmarks.colocation.bench import Bench
from benchmarks.colocation.calibrate import calibrate
from benchmarks.colocation.cells import Baseline, quantity_s
from benchmarks.colocation.control import Control
from benchmarks.colocation.run_folder import calibration_file, load_run, save_run
from benchmarks.colocation.servers import Servers
from benchmarks.colocation.setup import MODEL, Host, SloTarget
from weir_cli.loadlab.aimd import AimdLimit, feed_aimd
from weir_cli.loadlab.feeders import Target, feed_offline
from weir_cli.loadlab.live import LiveLatency
from weir_cli.loadlab.measure import Measurement, OfflineFeed, Window, measure
from weir_cli.loadlab.processes import Server, ServerError
from weir_cli.loadlab.streaming import HttpError, exchange
from weir_cli.loadlab.workload import OnlineRequest, offline_supply, online_requests

NOISY_FIT = 0.12
AIMD_INTERVAL_S = 0.5
AIMD_MARGIN = 0.95


async def execute(
    bench: Bench, run: Run, server: Server, control: Control | None, slos: Sequence[SloTarget]
) -> tuple[Measurement, dict[str, Any]]:
    """One run on a server that is idle and has an empty cache."""
    window, online = _load(bench, run)
    extra = {"ignore_eos": True, "stream_options": {"include_usage": True}}
    target = Target(host=server.host, port=server.port, model=MODEL, extra=extra)
    live = LiveLatency()
    limit = AimdLimit(most=float(bench.host.sequences))
    offline = _offline(bench, run, server, live=live, limit=limit, slos=slos)
    if control is not None:
        await control.open()
    result = await measure(
        server, target, online=online, offline=offline, window=window, watch=live.watch
    )
    more: dict[str, Any] = {"slos": [dataclasses.asdict(slo) for slo in slos]}
    if control is not None:
        more["control"] = await control.stats()
    if run.arm.control == "aimd":
        more["aimd_limit_at_end"] = limit.value
    return result, more


def _load(bench: Bench, run: Run) -> tuple[Window, list[OnlineRequest]]:
    """The window and its online requests, the same in all arms.

    An agent is new at each run: it gets the workload's lead of other traffic first.
    """
    workload, window = bench.workload(run.workload), bench.window
    shape = workload.online
    requests = online_requests(shape, seed=bench.seed, duration_s=window.total_s)
    if not run.arm.online:
        return window, []
    if run.arm.control != "weir":
        return window, requests
    lead_s = workload.lead_s
    lead = [
        replace(request, name=f"lead-{request.name}")
        for request in online_requests(shape, seed=bench.seed + 1_000, duration_s=lead_s)
    ]
    shifted = [replace(request, at_s=request.at_s + lead_s) for request in requests]
    return replace(window, ramp_s=window.ramp_s + lead_s), [*lead, *shifted]


def _offline(
    bench: Bench,
    run: Run,
    server: Server,
    *,
    live: LiveLatency,
    limit: AimdLimit,
    slos: Sequence[SloTarget],
) -> OfflineFeed | None:
    """The offline client; an agent is fed by its control plane instead."""
    order = run.arm.order
    if order is None or run.arm.control == "weir":
        return None
    supply = offline_supply(
        bench.host.workloads[run.workload].offline, seed=bench.seed, order=order
    )
    extra = {"priority": 1} if run.arm.engine.policy == "priority" else {}
    target = Target(host=server.host, port=server.port, model=MODEL, extra=extra)
    if run.arm.control == "aimd":
        return lambda done: feed_aimd(
            target,
            supply,
            violated=lambda: violated(live, slos, time.monotonic(), aim=run.arm.aim),
            limit=limit,
            interval_s=AIMD_INTERVAL_S,
            done=done,
        )
    in_flight = bench.host.offline_in_flight
    return lambda done: feed_offline(target, supply, concurrency=in_flight, done=done)


def violated(
    live: LiveLatency, slos: Sequence[SloTarget], now_s: float, *, aim: float = 1.0
) -> bool | None:
    """Whether the last seconds use more than ``aim`` of an SLO's tolerance; None without samples.

    With a small margin to the SLO itself at any aim.
    """
    seen = False
    for slo in slos:
        stats = live.ttft(now_s) if slo.metric == "ttft" else live.tbt(now_s)
        if stats.count:
            seen = True
            aim_s = slo.reference_s + aim * (slo.threshold_s - slo.reference_s)
            if stats.value_s(slo.statistic) > min(AIMD_MARGIN * slo.threshold_s, aim_s):
                return True
    return False if seen else None


async def execute_all(
    bench: Bench, servers: Servers, runs: Sequence[Run], baseline: Callable[[str], Baseline]
) -> None:
    """Makes every run that has no file yet; runs that can share a server do."""
    (bench.folder / "logs").mkdir(parents=True, exist_ok=True)
    waiting = [run for run in runs if load_run(bench, run) is None]
    groups: dict[Any, list[Run]] = {}
    for run in waiting:
        needs = run.cell if run.arm.control == "weir" else None
        # The gateway's many runs come last, so that an interrupted benchmark has all arms.
        gateway = run.arm.control == "aimd"
        key = (run.workload, run.arm.engine, needs, run.repeat if needs else 0, gateway)
        groups.setdefault(key, []).append(run)
    done = 0
    for group in groups.values():
        setup = group[0].arm.engine
        cell = group[0].cell
        if group[0].arm.control == "weir" and cell is not None:
            setup = dataclasses.replace(setup, slos=baseline(group[0].workload).targets(cell))
        try:
            server, control = await servers.get(bench, setup, group[0].workload)
            for run in group:
                slos = baseline(run.workload).targets(run.cell) if run.cell else ()
                await _settle(server, bench.host)
                result, more = await execute(bench, run, server, control, slos)
                save_run(bench, run, result, more)
                done += 1
                bench.say(f"[{done}/{len(waiting)}] {run.key}: {summary(result)}")
        except (ServerError, HttpError, OSError) as error:
            await servers.stop()
            bench.say(f"{group[0].key} and what shares its server: {error}")


async def calibrate_machine(bench: Bench, servers: Servers) -> None:
    """Measures step costs once a run folder, on an idle stock server.

    Raises:
        ServerError: the server did not start, or a request failed.
    """
    if calibration_file(bench).exists():
        return
    (bench.folder / "logs").mkdir(parents=True, exist_ok=True)
    server, _ = await servers.get(bench, ONLINE_ONLY.engine, "trace")
    await _settle(server, bench.host)
    target = Target(host=server.host, port=server.port, model=MODEL, extra={"ignore_eos": True})
    cost = await calibrate(target, bench.seed)
    calibration_file(bench).write_text(json.dumps(dataclasses.asdict(cost), indent=1))
    bench.say(
        f"calibration: {1e3 * cost.c0_s:.2f} ms fixed a step, "
        f"{cost.prefill_us_per_token():.0f} us a prefill token (prompt of 512), "
        f"{cost.decode_us():.0f} us a decode at 1,500 tokens, "
        f"{1e3 * cost.http_s:.1f} ms HTTP before a first token (fit error {cost.error_share:.1%})"
    )
    if cost.error_share > NOISY_FIT:
        bench.say("calibration is noisy: the bound is worth nothing, is the machine busy?")


async def _settle(server: Server, host: Host) -> None:
    """Waits until aborted requests are gone, empties the prefix cache, warms the code paths."""
    target = Target(host=server.host, port=server.port, model=MODEL, extra={"ignore_eos": True})
    await asyncio.sleep(0.5)
    prompts = [("warm up " * 40, 16), ("warm up " * 120, 4)]
    prompts += [(f"{tokens} ".ljust(tokens, "."), 2) for tokens in host.warm_tokens]
    for text, tokens in prompts:
        await exchange(
            server.host, server.port, "POST", "/v1/completions", target.body(text, tokens)
        )
    for _ in range(20):
        answer = await exchange(server.host, server.port, "POST", "/reset_prefix_cache")
        if answer.status != 200 or b"false" not in answer.body:
            return
        await asyncio.sleep(0.25)


def summary(result: Measurement) -> str:
    """A progress line's figures."""
    parts = []
    if result.online.requests:
        for metric, statistic in (
            ("ttft", "mean"),
            ("ttft", "p99"),
            ("tbt", "mean"),
            ("tbt", "p99"),
        ):
            value_ms = 1e3 * quantity_s(result, metric, statistic)
            parts.append(f"{statistic} {metric.upper()} {value_ms:.1f} ms")
    parts.append(
        f"offline {result.offline_served_per_s:,.0f} tokens/s served, "
        f"{result.offline_computed_per_s:,.0f} computed"
    )
    if result.online.failed or result.offline_errors:
        parts.append(
            f"{result.online.failed} online and {result.offline_errors} offline failed: "
            + "; ".join(result.errors[:2])
        )
    return ", ".join(parts)
