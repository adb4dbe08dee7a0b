"""The arms of the demo: each starts its servers, runs the same load, and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from openai import AsyncOpenAI, OpenAIError
from openai.types import Batch

from weir_cli.api import Api
from weir_cli.demo import plan
from weir_cli.demo.monitor import BatchProgress, Monitor, Screen
from weir_cli.demo.slo import Objective
from weir_cli.errors import CliError
from weir_cli.loadlab.feeders import Target, feed_offline, feed_online
from weir_cli.loadlab.measure import Measurement, OfflineFeed, measure
from weir_cli.loadlab.processes import (
    Server,
    ServerError,
    ServerSpec,
    available_cores,
    log_tail,
    pin_process,
    start_server,
)
from weir_cli.loadlab.records import RequestRecord
from weir_cli.loadlab.streaming import HttpError, exchange
from weir_cli.loadlab.workload import OfflineOrder, OnlineRequest, offline_supply
from weir_cli.models import TERMINAL, KeyRequest
from weir_cli.settings import ClientSettings

POLL_S = 1.0
_KEEP = "keep the logs with --keep DIR and see docs/troubleshooting.md"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What every arm is given. ``online`` is longer than an arm: a slow batch needs the rest."""

    folder: Path
    model: Path
    online: Sequence[OnlineRequest]
    lines: int
    length: plan.Length
    screen: Screen


@dataclass(frozen=True, kw_only=True)
class BatchOutcome:
    """How the batch of the Weir arm ended. ``once`` counts input lines answered exactly once.

    ``beside_s`` are the seconds of the measured window in which it ran.
    """

    status: str
    lines: int
    once: int
    failed: int
    beside_s: float


@contextlib.asynccontextmanager
async def stock_server(
    stage: Stage, *, step_tokens: int = plan.DEFAULT_STEP_TOKENS
) -> AsyncIterator[Server]:
    """A stock vLLM server with its priority policy, for one arm after another."""
    spec = plan.stock_server(stage.model, step_tokens=step_tokens)
    name = f"stock vLLM, {step_tokens} tokens a step"
    async with _running(spec, stage, name) as server:
        yield server


async def stock_arm(
    stage: Stage, server: Server, name: str, *, order: OfflineOrder | None = None
) -> Measurement:
    """Online traffic on a stock server, with offline lines in ``order`` unless None."""
    await exchange(server.host, server.port, "POST", "/reset_prefix_cache")
    offline: OfflineFeed | None = None
    if order is not None:
        supply = offline_supply(plan.BATCH, seed=plan.SEED, order=order)
        lowly = _target(server, priority=1)

        async def feed(done: Callable[[RequestRecord], None]) -> None:
            await feed_offline(lowly, supply, concurrency=plan.OFFLINE_CONCURRENCY, done=done)

        offline = feed
    monitor = Monitor(phase=name, duration_s=stage.length.window.total_s)
    async with monitor.showing(stage.screen):
        return await measure(
            server,
            _target(server, priority=0),
            online=_within(stage, stage.length.window.total_s),
            offline=offline,
            window=stage.length.window,
            watch=monitor.watch,
        )


async def weir_arm(stage: Stage, slos: Sequence[Objective]) -> tuple[Measurement, BatchOutcome]:
    """Control plane, agent, and the whole batch, submitted by the stock `openai` client."""
    window = stage.length.window
    async with _running(
        plan.controlplane_server(stage.folder), stage, "control plane", engine=False
    ) as plane:
        agent_key, tenant_key = await asyncio.to_thread(_keys, stage.folder, plane.port)
        spec = plan.agent_server(
            stage.folder,
            stage.model,
            controlplane=f"http://127.0.0.1:{plane.port}",
            key=agent_key,
            slos=[objective.as_setting() for objective in slos],
        )
        async with _running(spec, stage, "agent") as agent:
            client = AsyncOpenAI(base_url=f"http://127.0.0.1:{plane.port}/v1", api_key=tenant_key)
            progress = BatchProgress(total=stage.lines)
            monitor = Monitor(
                phase="Weir",
                duration_s=window.total_s,
                metrics_port=agent.port,
                batch=progress,
            )
            async with monitor.showing(stage.screen), client:
                batch = asyncio.create_task(_run_batch(client, stage.lines, progress))
                begun_s = time.monotonic()
                try:
                    # An engine without a batch says nothing of what it bears: the other arms'
                    # lines never run dry.
                    measured = await measure(
                        agent,
                        _target(agent, priority=None),
                        online=_within(stage, window.total_s),
                        offline=None,
                        window=window,
                        watch=monitor.watch,
                        closing=progress.drained,
                    )
                    ended = await _while_online(stage, agent, monitor, batch)
                finally:
                    batch.cancel()
                too_early = progress.drained_s - begun_s <= window.ramp_s
                beside_s = 0.0 if too_early else measured.window_s
                outcome = await _outcome(client, stage.lines, ended, beside_s)
    return measured, outcome


async def _while_online(
    stage: Stage, agent: Server, monitor: Monitor, batch: asyncio.Task[Batch]
) -> Batch:
    """Goes on until the batch has ended, with the trace for a while.

    Raises:
        CliError: it does not end.
    """
    begin_s = stage.length.window.total_s
    rest = [
        replace(request, at_s=request.at_s - begin_s)
        for request in stage.online
        if 0 <= request.at_s - begin_s < stage.length.online_longer_s
    ]
    traffic = asyncio.create_task(
        feed_online(
            _target(agent, priority=None),
            rest,
            start_s=time.monotonic(),
            done=lambda _record: None,
            watch=monitor.watch,
        )
    )
    within_s = stage.length.batch_within_s(stage.lines)
    try:
        async with asyncio.timeout(within_s):
            return await batch
    except TimeoutError:
        raise CliError(
            f"the batch did not end within {within_s:.0f} s",
            remedy="the machine may be too slow for the demo; keep the logs with --keep DIR",
        ) from None
    finally:
        traffic.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await traffic


async def _run_batch(client: AsyncOpenAI, lines: int, progress: BatchProgress) -> Batch:
    """The batch in its final state.

    Raises:
        CliError: the control plane does not do its part.
    """
    try:
        return await _follow(client, lines, progress)
    except OpenAIError as error:
        raise CliError(f"the batch: {error}", remedy=_KEEP) from error


async def _follow(client: AsyncOpenAI, lines: int, progress: BatchProgress) -> Batch:
    content = plan.batch_jsonl(plan.batch_lines(lines))
    file = await client.files.create(file=("demo.jsonl", content), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    while batch.status not in TERMINAL:
        await asyncio.sleep(POLL_S)
        batch = await client.batches.retrieve(batch.id)
        progress.status = batch.status
        if batch.request_counts is not None:
            progress.done = batch.request_counts.completed + batch.request_counts.failed
            progress.failed = batch.request_counts.failed
        if progress.done >= progress.total or batch.status in TERMINAL:
            progress.is_drained(time.monotonic())
    return batch


async def _outcome(client: AsyncOpenAI, lines: int, batch: Batch, beside_s: float) -> BatchOutcome:
    answered: list[str] = []
    for file_id in (batch.output_file_id, batch.error_file_id):
        if file_id is not None:
            content = await client.files.content(file_id)
            answered += [json.loads(row)["custom_id"] for row in content.content.splitlines()]
    wanted = {line.custom_id for line in plan.batch_lines(lines)}
    counts = batch.request_counts
    return BatchOutcome(
        status=batch.status,
        lines=len(wanted),
        once=sum(answered.count(custom_id) == 1 for custom_id in wanted),
        failed=counts.failed if counts else 0,
        beside_s=beside_s,
    )


def _keys(folder: Path, port: int) -> tuple[str, str]:
    """An agent's key and a tenant's, made with the first admin key."""
    admin = (folder / "controlplane" / "admin.key").read_text(encoding="utf-8").strip()
    api = Api(ClientSettings.model_validate({"url": f"http://127.0.0.1:{port}", "api_key": admin}))
    try:
        api.create_tenant("demo")
        agent = api.create_key(KeyRequest(scope="agent", agent_id="demo"))
        tenant = api.create_key(KeyRequest(scope="tenant", tenant="demo"))
    finally:
        api.close()
    return agent.key, tenant.key


def _target(server: Server, *, priority: int | None) -> Target:
    extra = {} if priority is None else {"priority": priority}
    return Target(host=server.host, port=server.port, model=plan.MODEL, extra=extra)


def _within(stage: Stage, duration_s: float) -> list[OnlineRequest]:
    return [request for request in stage.online if request.at_s < duration_s]


@contextlib.asynccontextmanager
async def _running(
    spec: ServerSpec, stage: Stage, name: str, *, engine: bool = True
) -> AsyncIterator[Server]:
    """A server for the time of the block.

    Raises:
        CliError: it does not start, it ends, or it is too slow to be measured.
    """
    stage.screen.say(f"starting: {name}")
    try:
        server = await start_server(spec, _log(stage, name))
    except ServerError as error:
        raise CliError(f"{name}: {error}", remedy=_KEEP) from error
    try:
        with _apart(server, engine=engine):
            yield server
    except (ServerError, HttpError, OSError) as error:
        ended = f"it ended:\n{log_tail(server.log)}"
        raise CliError(f"{name}: {error if server.running else ended}", remedy=_KEEP) from error
    finally:
        await server.stop()


@contextlib.contextmanager
def _apart(server: Server, *, engine: bool) -> Iterator[None]:
    """The engine alone on one core, all else on the other: in every arm, as in the benchmarks.

    A control plane is not on an engine's machine, and a load generator neither.
    """
    cores = available_cores()
    if not engine:
        pin_process(server.pid, cores.client)
        yield
        return
    server.pin(cores)
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores.client})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)  # the next server starts on all


def _log(stage: Stage, name: str) -> Path:
    return stage.folder / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.log"
