"""The server of a run, and the control plane beside an agent; runs that can share one do."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks.colocation.bench import Bench
from benchmarks.colocation.control import Control, RealControl, StandIn
from benchmarks.colocation.setup import EngineSetup, stock_server, weir_server
from weir_cli.loadlab.processes import Server, free_port, start_server


@asynccontextmanager
async def running_server(
    bench: Bench, setup: EngineSetup, workload: str
) -> AsyncIterator[tuple[Server, Control | None]]:
    """A pinned server, and the control plane beside an agent."""
    port = free_port()
    size = setup.batched_tokens or bench.host.batched_tokens
    log = bench.folder / "logs" / f"{setup.scheduler}-{size}-{port}.log"
    control: Control | None = None
    if bench.host.pinned:
        os.sched_setaffinity(0, bench.cores.both)  # a start may use both cores
    try:
        if setup.scheduler == "weir":
            control = await _control(bench, setup, workload, log.with_suffix(".control.log"))
            data_dir = bench.folder / "agents" / str(port)
            shutil.rmtree(data_dir, ignore_errors=True)  # no run begins with what another learned
            spec = weir_server(
                bench.model, setup, port, control=control, data_dir=data_dir, host=bench.host
            )
        else:
            spec = stock_server(bench.model, setup, port, host=bench.host)
        forked = bench.agents.get() if setup.scheduler == "weir" else None
        server = await start_server(spec, log, zygote=forked)
    except BaseException:
        if control is not None:
            await control.stop()
        raise
    try:
        if bench.host.pinned:
            server.pin(bench.cores)
            os.sched_setaffinity(0, {bench.cores.client})
        yield server, control
    finally:
        await server.stop(grace_s=3.0)
        if control is not None:
            await control.stop()


class Servers:
    """The server that runs now; runs that need the same one take it over from those before."""

    def __init__(self) -> None:
        self._held = AsyncExitStack()
        self._setup: EngineSetup | None = None
        self._running: tuple[Server, Control | None] | None = None

    async def get(
        self, bench: Bench, setup: EngineSetup, workload: str
    ) -> tuple[Server, Control | None]:
        """A server of that setup; an agent is a new one each time.

        Raises:
            ServerError: it did not start.
        """
        if self._running is None or setup.scheduler == "weir" or setup != self._setup:
            await self.stop()
            self._running = await self._held.enter_async_context(
                running_server(bench, setup, workload)
            )
            self._setup = setup
        return self._running

    async def stop(self) -> None:
        """Ends the server, if there is one."""
        self._running = None
        await self._held.aclose()


async def _control(bench: Bench, setup: EngineSetup, workload: str, log: Path) -> Control:
    offline, core = bench.host.workloads[workload].offline, bench.cores.client
    if setup.real_control_plane:
        return await RealControl.start(offline, seed=bench.seed, core=core, log=log)
    return await StandIn.start(
        offline, seed=bench.seed, core=core, log=log, forecasts=True, host=bench.host
    )
