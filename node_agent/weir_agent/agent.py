"""One agent over a started engine: HTTP server, heartbeat, sync and work, and their orderly end.

Knows no vLLM: the engine and its application are given.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Literal, Protocol, Self

import structlog
import uvicorn

from weir_agent.asgi_call import AsgiApp
from weir_agent.assembly import (
    OfflineSide,
    build_offline_side,
    build_server,
    build_stores,
    open_control_plane,
)
from weir_agent.control_plane import ControlPlane
from weir_agent.engine import Engine
from weir_agent.http import WeirRoutes
from weir_agent.latency import LatencyProbe, OnlineLatency
from weir_agent.pulse import EnginePulse
from weir_agent.settings import AgentSettings

log = structlog.get_logger(__name__)

WATCH_S = 0.1
STOOD_STILL_S = 1.0
STOP_SEEN_S = 0.2
LAST_SYNC_S = 2.0  # for what is handed back, however long the rest took
ERRORS_OUT_S = 0.5
STOP_ACCEPTING_S = 0.3
APPLICATION_STOP_S = 1.0
ENGINE_STOP_S = 5.0


class ServingEngine(Engine, Protocol):
    """An engine with its online application."""

    @property
    def app(self) -> AsgiApp:
        """The online application."""
        ...

    def kill(self) -> None:
        """Ends the engine's processes at once."""
        ...

    async def stop(self, *, within_s: float) -> None:
        """Ends the engine in order."""
        ...


class EngineDiedError(Exception):
    """The engine died or hung; the agent must be started again.

    ``recorded``: its death is on disk; else the journal has it still.
    """

    def __init__(self, message: str, *, recorded: bool) -> None:
        super().__init__(message)
        self.recorded = recorded


class Agent:
    """A node agent from its engine's start to its end."""

    def __init__(
        self,
        settings: AgentSettings,
        engine: ServingEngine,
        *,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_ready`` is called once, when requests are served."""
        self._on_ready = on_ready
        self._settings = settings
        self._engine = engine
        self._stop = asyncio.Event()
        self._serving = False
        self._offline: OfflineSide | None = None
        self.stores = build_stores(settings, engine)
        self.stores.journal.clear()  # this engine has just started
        metrics = self.stores.metrics
        latency = OnlineLatency(
            lambda metric, value_s: metrics.online_latency[metric].observe(value_s)
        )
        self._probe = LatencyProbe(engine.app, latency)
        self.app = WeirRoutes(
            self._probe,
            registry=metrics.registry,
            unhealthy=self._unhealthy,
            unready=self._unready,
        )
        self._pulse = EnginePulse(
            engine,
            slos=settings.slo,
            latency=latency,
            metrics=metrics,
            on_slots=self._set_slots,
        )

    def request_stop(self) -> None:
        """Begins the orderly end: hand offline work back, drain online, stop the engine."""
        self._stop.set()

    async def run(self, bound: socket.socket) -> None:
        """Serves on ``bound`` until it is asked to stop.

        Raises:
            EngineDiedError: the engine died or hung.
        """
        server = build_server(self.app, self._settings)
        with contextlib.closing(bound.dup()) as listening:
            async with open_control_plane(self._settings) as control_plane, _Tasks() as tasks:
                served = tasks.start(server.serve(sockets=[bound]), "http")
                watch = tasks.start(self._watch(), "watch")
                stop = tasks.start(self._stop.wait(), "stop")
                tasks.keep(self._pulse.run(), "pulse")
                tasks.keep(self.stores.profile.keep(self._engine), "profile")
                if control_plane is not None:
                    self._go_offline(control_plane, tasks)
                tasks.keep(self._announce(server, bound), "announce")
                done, _ = await asyncio.wait(
                    {served, watch, stop, *tasks.kept}, return_when=asyncio.FIRST_COMPLETED
                )
                self._serving = False
                if watch in done or self._engine.dead:
                    cause = await watch
                    if isinstance(cause, EngineDiedError):
                        await _end_application(server)
                        raise cause
                for task in done:
                    task.result()  # the loops never end but by an error
                await self._hand_back()
                await self._drain(server, served, listening)
                await self.stores.profile.save(self._engine)
        await self._engine.stop(within_s=ENGINE_STOP_S)
        self.stores.spool.close()
        self.stores.journal.close()
        log.info("agent.stopped")

    def _go_offline(self, control_plane: ControlPlane, tasks: _Tasks) -> None:
        self._pulse.expect_policies()
        self._offline = build_offline_side(
            self._settings, self._engine, control_plane, stores=self.stores, pulse=self._pulse
        )
        tasks.keep(self._offline.feeder.run(), "work")
        tasks.keep(self._offline.sync.run(), "sync")

    async def _drain(
        self, server: uvicorn.Server, served: asyncio.Task[object], listening: socket.socket
    ) -> None:
        server.should_exit = True
        await asyncio.wait({served}, timeout=STOP_ACCEPTING_S)
        with contextlib.suppress(OSError):
            # Copies of the socket in other processes would go on accepting.
            listening.shutdown(socket.SHUT_RDWR)
        await asyncio.wait({served}, timeout=self._settings.drain_s + 1.0)

    async def _announce(self, server: uvicorn.Server, bound: socket.socket) -> None:
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        self._serving = True
        self._on_ready()
        log.info("agent.serving", agent_id=self._settings.agent_id, port=port_of(bound))
        await asyncio.Event().wait()

    async def _hand_back(self) -> None:
        log.info("agent.draining", online=self._probe.in_flight)
        if self._offline is not None:
            until_s = time.monotonic() + self._settings.hand_back_s
            await self._offline.work.hand_back(within_s=self._settings.hand_back_s)
            left_s = max(LAST_SYNC_S, until_s - time.monotonic())
            with contextlib.suppress(TimeoutError):  # leases end by themselves
                async with asyncio.timeout(left_s):
                    await self._offline.sync.last()

    async def _watch(self) -> EngineDiedError | None:
        """Returns what happened to the engine, recorded where possible; None while stopping.

        Whoever stops all processes at once stops the engine too: that suspects no line.
        """
        kind = await self._trouble()
        self._serving = False
        self.stores.metrics.engine_up.set(0)
        if self._offline is not None:
            self._offline.work.engine_gone = True
        if kind == "crash":
            await asyncio.sleep(STOP_SEEN_S)
        if self._stop.is_set():
            return None
        recorded = self._record(kind)
        self._engine.kill()
        await asyncio.sleep(ERRORS_OUT_S)  # clients get their errors
        if self._offline is not None:
            self._offline.work.leave()
        return EngineDiedError(f"the engine is gone ({kind})", recorded=recorded)

    def _record(self, kind: Literal["crash", "hang"]) -> bool:
        try:
            death = self.stores.journal.record_death(kind)
        except OSError as error:
            log.error("engine.died", kind=kind, not_recorded=str(error))  # noqa: TRY400 - no stack to read
            return False
        resident = len(death.resident)
        log.error("engine.died", kind=kind, death_id=death.death_id, resident=resident)
        return True

    async def _trouble(self) -> Literal["crash", "hang"]:
        """Returns once the engine is dead, or was silent for too long while this process ran."""
        awake_s = time.monotonic()
        while True:
            slept_s = time.monotonic()
            await asyncio.sleep(WATCH_S)
            if self._engine.dead:
                return "crash"
            now_s = time.monotonic()
            if now_s - slept_s > WATCH_S + STOOD_STILL_S:
                awake_s = now_s  # frozen or starved: an answer may lie here unread
            if not self._silent_since(awake_s):
                continue
            await asyncio.sleep(STOP_SEEN_S)
            if self._silent_since(awake_s):
                return "hang"

    def _silent_since(self, awake_s: float) -> bool:
        silent_s = time.monotonic() - max(awake_s, self._pulse.answered_s)
        return silent_s > self._settings.hang_after_s

    def _set_slots(self, slots: int) -> None:
        metrics, spool = self.stores.metrics, self.stores.spool
        metrics.engine_up.set(float(not self._engine.dead))
        metrics.spool_bytes.set(spool.used_bytes)
        metrics.spool_reserved.set(spool.reserved_bytes)
        if self._offline is not None:
            self._offline.work.set_slots(slots, idle=self._pulse.offline_stands_still)
            metrics.chunks.set(len(self._offline.work.held()))

    def _unhealthy(self) -> str | None:
        return "the engine is dead" if self._engine.dead else None

    def _unready(self) -> str | None:
        if self._stop.is_set():
            return "draining"
        return self._unhealthy() or (None if self._serving else "starting")


async def _end_application(server: uvicorn.Server) -> None:
    """Ends it in order: one that is cut off logs its stack, as if something were wrong with it."""
    if server.started:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.lifespan.shutdown(), APPLICATION_STOP_S)


class _Tasks:
    """Background tasks that end with the block."""

    def __init__(self) -> None:
        self._all: list[asyncio.Task[object]] = []
        self.kept: list[asyncio.Task[object]] = []

    def start(self, work: Coroutine[object, object, object], name: str) -> asyncio.Task[object]:
        """Starts a task that may end."""
        task = asyncio.create_task(work, name=name)
        self._all.append(task)
        return task

    def keep(self, work: Coroutine[object, object, object], name: str) -> None:
        """Starts a task that never ends but by an error."""
        task = asyncio.create_task(work, name=name)
        self._all.append(task)
        self.kept.append(task)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._all:
            task.cancel()
        await asyncio.wait(self._all)


def install_signals(agent: Agent) -> None:
    """SIGTERM and SIGINT begin the orderly end."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.request_stop)


def port_of(bound: socket.socket) -> int:
    """The TCP port of a bound socket."""
    port: int = bound.getsockname()[1]
    return port
