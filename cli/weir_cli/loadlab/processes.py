"""Server processes under test: start, wait until ready, pin to cores, stop.

Linux only (`/proc`). What the servers are and how they are set up belongs to the callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from weir_cli.loadlab.process_tree import cpu_s, descendants, find_descendant
from weir_cli.loadlab.streaming import HttpError, exchange

ENGINE_PROCESS = "VLLM::EngineCor"  # the kernel keeps 15 characters of a name


class ServerError(Exception):
    """A server did not start; the message ends with the tail of its log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cores:
    """Where the two halves run: the engine on one core, server and load generator on the other.

    ``engine`` and ``client`` are equal on a machine with one core: figures are then worthless, and
    callers say so.
    """

    engine: int
    client: int

    @property
    def both(self) -> set[int]:
        """The cores of both halves."""
        return {self.engine, self.client}

    @property
    def apart(self) -> bool:
        """True when each half has a core of its own."""
        return self.engine != self.client


def available_cores() -> Cores:
    """The first two cores that this process may use."""
    usable = sorted(os.sched_getaffinity(0))
    return Cores(engine=usable[0], client=usable[min(1, len(usable) - 1)])


def end_in_order_on_sigterm() -> None:
    """Makes SIGTERM unwind the program, so that the servers it started are stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSpec:
    """A command to run, the port it will listen on, and the path that answers 200 when ready."""

    command: Sequence[str]
    environment: Mapping[str, str]
    port: int
    ready_path: str = "/health"
    ready_timeout_s: float = 240.0


class ServerProcess(Protocol):
    """What a server needs of its process; `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """The process id, also that of its group."""

    def poll(self) -> int | None:
        """None while it runs."""

    def terminate(self) -> None:
        """Sends SIGTERM."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end; raises `subprocess.TimeoutExpired`."""


class ForkedProcess:
    """A process that another one forked and reaps."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """0 once it is gone; its exit status is not known here."""
        return None if Path(f"/proc/{self.pid}").exists() else 0

    def terminate(self) -> None:
        """Sends SIGTERM, unless it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def wait(self, timeout: float | None = None) -> int:
        """Polls until it is gone.

        Raises:
            subprocess.TimeoutExpired: it is still there.
        """
        deadline_s = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while self.poll() is None:
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(cmd=f"pid {self.pid}", timeout=timeout or 0.0)
            time.sleep(0.02)
        return 0


class Zygote:
    """A preloaded process that forks servers (see `zygote`); stop it after its servers.

    It is started before the caller pins itself, so that its children may use every core while they
    start.
    """

    def __init__(self, preload: str, entry: str, *, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "weir_cli.loadlab.zygote", preload, entry],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._expect()

    def fork(self, environment: Mapping[str, str], log: Path) -> ForkedProcess:
        """A new server process.

        Raises:
            ServerError: the zygote has ended.
        """
        request = {"environment": dict(environment), "log": str(log)}
        if self._process.stdin is None or self._process.poll() is not None:
            raise ServerError("the preloaded process has ended")
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return ForkedProcess(int(self._expect()))

    def stop(self) -> None:
        """Ends it; its servers are not touched."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _expect(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise ServerError("the preloaded process ended while starting")
        return line


class Server:
    """A running server and its engine process; ``stop`` ends both."""

    def __init__(self, spec: ServerSpec, process: ServerProcess, log: Path) -> None:
        self.spec = spec
        self.host = "127.0.0.1"
        self.port = spec.port
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        """The process that was started."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """False once the process has ended."""
        return self._process.poll() is None

    def engine_pid(self) -> int | None:
        """The process that computes, a descendant of the one that was started."""
        return find_descendant(self.pid, ENGINE_PROCESS)

    def pin(self, cores: Cores) -> None:
        """Puts the engine process on one core and every other process of the tree on the other.

        Raises:
            ServerError: there is no engine process.
        """
        engine = self.engine_pid()
        if engine is None:
            raise ServerError(f"no process named {ENGINE_PROCESS} under {self.pid}")
        for pid in descendants(self.pid):
            pin_process(pid, cores.engine if pid == engine else cores.client)

    def engine_cpu_s(self) -> float:
        """Processor seconds that the engine process has used; 0 when there is none."""
        pid = self.engine_pid()
        return 0.0 if pid is None else cpu_s(pid)

    async def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM, then SIGKILL to the whole process group."""
        if self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, grace_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


async def start_server(spec: ServerSpec, log: Path, *, zygote: Zygote | None = None) -> Server:
    """Starts the command in a process group of its own and waits until it is ready.

    With a ``zygote`` its entry point is forked instead, with the same environment.

    Raises:
        ServerError: it ended, or was not ready in time.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process: ServerProcess = (
            (zygote.fork(spec.environment, log))
            if zygote
            else subprocess.Popen(  # noqa: S603, ASYNC220 - our own command; the start is waited for below
                list(spec.command),
                env=dict(spec.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
    server = Server(spec, process, log)
    try:
        await _until_ready(server)
    except BaseException:
        await server.stop(grace_s=1.0)
        raise
    return server


async def _until_ready(server: Server) -> None:
    deadline_s = time.monotonic() + server.spec.ready_timeout_s
    while time.monotonic() < deadline_s:
        if not server.running:
            raise ServerError(f"the server ended while starting:\n{log_tail(server.log)}")
        try:
            answer = await exchange(server.host, server.port, "GET", server.spec.ready_path)
            if answer.status == 200:
                return
        except (OSError, HttpError):
            pass
        await asyncio.sleep(0.2)
    raise ServerError(
        f"the server was not ready after {server.spec.ready_timeout_s:.0f} s:\n"
        f"{log_tail(server.log)}"
    )


def log_tail(log: Path, lines: int = 25) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def pin_process(pid: int, core: int) -> None:
    """Pins every thread of a process to one core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), {core})
        except ProcessLookupError:
            continue
