"""The demo from start to end: the arms in order, and what is said at the end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any
from urllib.request import getproxies_environment

from weir_agent.sample_model import write_sample_model
from weir_cli.console import out
from weir_cli.demo import plan
from weir_cli.demo.command import ending_signals
from weir_cli.demo.monitor import Screen
from weir_cli.demo.slo import Objective, objectives, unanswered, verdict
from weir_cli.demo.stages import BatchOutcome, Stage, stock_arm, stock_server, weir_arm
from weir_cli.demo.trace import TraceRow
from weir_cli.demo.view import ArmRow, Latency, closing_lines, closing_table
from weir_cli.errors import CliError, ExitStatus
from weir_cli.loadlab.measure import Measurement
from weir_cli.loadlab.workload import OfflineOrder

LOOPBACK = "127.0.0.1"
TOLERANCE = 0.5


def run_demo(
    rows: Sequence[TraceRow], *, folder: Path, lines: int, length: plan.Length, fast: bool
) -> None:
    """Runs the arms and prints the comparison.

    Raises:
        CliError: the trace has nothing to measure, it was interrupted, a server did not start or
            ended, or the batch did not come out whole.
    """
    online = plan.online_load(rows, duration_s=length.online_s)
    plan.check_online(online, length.window)
    reach_loopback_directly()
    model = folder / "model"
    write_sample_model(model)
    with Screen(out) as screen:
        stage = Stage(
            folder=folder,
            model=model,
            online=online,
            lines=lines,
            length=length,
            screen=screen,
        )
        arms, outcome = _interruptible(_arms(stage, fast=fast))
    _close(arms, outcome)


def reach_loopback_directly() -> None:
    """Keeps a proxy that the environment names away from the demo's servers, all on this machine.

    Clients of every library and process of the demo heed the variable; a proxy would refuse what it
    cannot reach, or be sent the keys.
    """
    named = filter(None, (getproxies_environment().get("no"), LOOPBACK))
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(named)


async def _arms(stage: Stage, *, fast: bool) -> tuple[list[ArmRow], BatchOutcome]:
    if fast:
        measured, outcome = await weir_arm(stage, [])
        return [_row("Weir", measured, *_of_weir(measured, [], outcome, stage))], outcome
    async with stock_server(stage) as server:
        alone = await stock_arm(stage, server, "online alone")
        wanted = slo_of(alone)
        slo = f"the SLO is this plus {TOLERANCE:.0%}"
        rows = [_row("online alone", alone, slo, unanswered(alone))]
        name = "stock vLLM, policy=priority"
        measured = await stock_arm(stage, server, name, order=OfflineOrder.SHUFFLED)
        rows.append(_row(name, measured, verdict(measured, wanted)))
    async with stock_server(stage, step_tokens=plan.STATIC_STEP_TOKENS) as server:
        name = f"stock vLLM, one static size, {plan.STATIC_STEP_TOKENS} tokens a step"
        measured = await stock_arm(stage, server, name, order=OfflineOrder.PREFIX)
        rows.append(_row(name, measured, verdict(measured, wanted)))
    measured, outcome = await weir_arm(stage, wanted)
    rows.append(_row("Weir", measured, *_of_weir(measured, wanted, outcome, stage)))
    return rows, outcome


def slo_of(alone: Measurement) -> list[Objective]:
    """The SLO that all other arms are judged by.

    Raises:
        CliError: not one online request was answered, so there is nothing to judge them by.
    """
    wanted = objectives(alone, tolerance=TOLERANCE)
    if not wanted:
        why = alone.errors[0] if alone.errors else "none ended in time"
        raise CliError(
            f"online traffic alone: {unanswered(alone) or 'no request has a latency'} ({why})",
            remedy="the machine may be too slow for the demo; keep the logs with --keep DIR",
        )
    return wanted


def _of_weir(
    measured: Measurement, wanted: Sequence[Objective], outcome: BatchOutcome, stage: Stage
) -> tuple[str, str]:
    return verdict(measured, wanted), beside(outcome.beside_s, stage.length)


def beside(batch_s: float, length: plan.Length) -> str:
    """What is to be said where the batch did not last as long as the window; else nothing."""
    if batch_s == 0:
        return "its batch had ended before what is measured: give more --lines"
    if batch_s < length.measure_s - 1:
        return f"over the {batch_s:.0f} s that its batch took of the window"
    return ""


def _row(name: str, measured: Measurement, *notes: str) -> ArmRow:
    online = measured.online
    return ArmRow(
        name=name,
        latency=Latency(
            ttft_p50_s=online.ttft.p50_s,
            ttft_p99_s=online.ttft.p99_s,
            tbt_mean_s=online.tbt.mean_s,
            tbt_p99_s=online.tbt.p99_s,
        ),
        offline_tokens_per_s=measured.offline_served_per_s,
        note="; ".join(filter(None, notes)),
    )


def _close(rows: list[ArmRow], outcome: BatchOutcome) -> None:
    """Prints the comparison.

    Raises:
        CliError: the batch did not come out whole.
    """
    title = "The same online trace in every arm; offline tokens as served, prompt and output"
    if out.is_terminal:
        out.print(closing_table(rows, title=title))
    else:
        for line in closing_lines(rows, title=title):
            out.print(line, markup=False)
    out.print(
        f"Weir's batch: {outcome.status}; {outcome.once} of {outcome.lines} lines answered exactly "
        f"once, {outcome.failed} with errors",
        markup=False,
    )
    if outcome.status != "completed" or outcome.once != outcome.lines or outcome.failed:
        raise CliError("the batch did not come out whole", remedy="keep the logs with --keep DIR")


def _interruptible(
    work: Coroutine[Any, Any, tuple[list[ArmRow], BatchOutcome]],
) -> tuple[list[ArmRow], BatchOutcome]:
    """Runs the work; Ctrl-C, SIGTERM and SIGHUP cancel it, and its blocks stop every process.

    Raises:
        CliError: it was interrupted.
    """

    async def run() -> tuple[list[ArmRow], BatchOutcome]:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in ending_signals():
            loop.add_signal_handler(number, task.cancel)
        return await task

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise CliError(
            "interrupted; everything is stopped", status=ExitStatus.INTERRUPTED
        ) from None
