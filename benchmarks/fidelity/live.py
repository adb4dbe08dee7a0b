"""A trace on a live engine: an agent under Weir's scheduler, whose steps are recorded."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.colocation.bench import AgentZygote
from benchmarks.colocation.calibrate import calibrate
from benchmarks.colocation.control import StandIn
from benchmarks.colocation.setup import MODEL, EngineSetup, SloTarget, weir_server
from benchmarks.fidelity.traces import FITTED, SLO, WINDOW, FidelityTrace
from weir_cli.loadlab.feeders import Target
from weir_cli.loadlab.measure import measure
from weir_cli.loadlab.processes import Cores, Server, free_port, start_server
from weir_cli.loadlab.streaming import exchange, stream_completion

_WARM_UP = (("warm up " * 40, 16), ("warm up " * 120, 4))


@dataclass(frozen=True, kw_only=True, slots=True)
class Lab:
    """What all live runs share. ``folder`` is absolute; ``say`` prints a progress line."""

    model: Path
    folder: Path
    cores: Cores
    agents: AgentZygote
    say: Callable[[str], None]

    def run_file(self, trace: FidelityTrace, repeat: int) -> Path:
        """Where a finished run is kept; ``repeat`` counts the runs of a trace from 1."""
        return self.folder / f"{trace.name}.{repeat}.json"

    def step_file(self, trace: FidelityTrace, repeat: int) -> Path:
        """Where its steps are."""
        return self.folder / f"{trace.name}.{repeat}.steps.jsonl"


async def run_live(lab: Lab, trace: FidelityTrace, repeat: int) -> None:
    """One run on a server of its own; its file appears when it is whole."""
    steps = lab.step_file(trace, repeat)
    steps.unlink(missing_ok=True)
    os.sched_setaffinity(0, lab.cores.both)  # a start may use both cores
    log = lab.folder / f"{trace.name}.{repeat}.log"
    control = await StandIn.start(
        trace.workload.offline,
        seed=trace.seed,
        core=lab.cores.client,
        log=log.with_suffix(".control.log"),
    )
    try:
        server = await _start(lab, control, log, steps)
        try:
            server.pin(lab.cores)
            os.sched_setaffinity(0, {lab.cores.client})
            content = await _measured(server, control, trace)
        finally:
            await server.stop(grace_s=5.0)
    finally:
        await control.stop()
    whole = lab.run_file(trace, repeat)
    part = whole.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1))
    part.replace(whole)


async def _start(lab: Lab, control: StandIn, log: Path, steps: Path) -> Server:
    slo = SloTarget(
        metric=SLO.metric.value,
        statistic=SLO.statistic,
        threshold_s=SLO.threshold_s,
        reference_s=SLO.threshold_s,
    )
    setup = EngineSetup(scheduler="weir", slos=(slo,))
    spec = weir_server(
        lab.model, setup, free_port(), control=control, data_dir=log.with_suffix(".data")
    )
    recorded = {
        **spec.environment,
        "WEIR_STEP_FILE": str(steps),
        "WEIR_PARTIAL_HITS": "false",  # the simulator's caches know whole blocks
    }
    spec = dataclasses.replace(spec, environment=recorded)
    return await start_server(spec, log, zygote=lab.agents.get())


async def _measured(server: Server, control: StandIn, trace: FidelityTrace) -> dict[str, object]:
    """The run's figures; HTTP's share is measured beside the fitted trace, on an idle server."""
    extra = {"ignore_eos": True, "stream_options": {"include_usage": True}}
    target = Target(host=server.host, port=server.port, model=MODEL, extra=extra)
    for text, tokens in _WARM_UP:
        await stream_completion(server.host, server.port, target.body(text, tokens))
    http_s = (await calibrate(target, trace.seed)).http_s if trace == FITTED else None
    await exchange(server.host, server.port, "POST", "/reset_prefix_cache")
    await asyncio.sleep(1.0)
    load = os.getloadavg()[0]
    if trace.colocated:
        await control.open()
    result = await measure(server, target, online=trace.online(), offline=None, window=WINDOW)
    return {
        "trace": trace.name,
        "window": dataclasses.asdict(WINDOW),
        "measurement": dataclasses.asdict(result),
        "http_s": http_s,
        "load_average_before": load,
        "control": await control.stats(),
    }
