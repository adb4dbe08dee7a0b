"""One measured window, on a server that only counts; and a server that ends amid it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.waiting import eventually
from weir_cli.demo import plan
from weir_cli.demo.monitor import Screen
from weir_cli.demo.stages import Stage, stock_server
from weir_cli.errors import CliError
from weir_cli.loadlab.feeders import Target
from weir_cli.loadlab.measure import Measurement, Window, measure, snapshot
from weir_cli.loadlab.processes import (
    ENGINE_PROCESS,
    ForkedProcess,
    Server,
    ServerSpec,
    available_cores,
    free_port,
)

TARGET = Target(host="127.0.0.1", port=0, model="m", extra={})
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
ANSWERS = """
import http.server, sys
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler)\
.serve_forever()
"""


class Counting:
    """Serves tokens until its batch is done, and says how many."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.tokens = 0

    async def serve(self) -> None:
        while not self.done.is_set():
            self.tokens += 10
            await asyncio.sleep(0.01)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + b'vllm:generation_tokens_total{engine="0"} %d\n' % self.tokens)
        await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def counting(log: Path) -> AsyncIterator[tuple[Counting, Server]]:
    engine = Counting()
    listening = await asyncio.start_server(engine.answer, "127.0.0.1", 0)
    spec = ServerSpec(
        command=(), environment={}, port=listening.sockets[0].getsockname()[1], ready_path="/"
    )
    serving = asyncio.create_task(engine.serve())
    async with listening:
        yield engine, Server(spec, ForkedProcess(os.getpid()), log)
    serving.cancel()


async def measured(engine: Counting, server: Server, window: Window) -> Measurement:
    return await measure(
        server, TARGET, online=[], offline=None, window=window, closing=engine.done
    )


async def test_a_window_closes_with_the_batch_that_it_is_about(tmp_path: Path) -> None:
    """Its rate was divided by a window of which the batch had taken a part."""
    window = Window(ramp_s=0.1, measure_s=600, tail_s=0)
    async with counting(tmp_path / "log") as (engine, server):
        asyncio.get_running_loop().call_later(0.6, engine.done.set)
        found = await measured(engine, server, window)
    assert found.window_s < 600
    assert found.offline_served_per_s == pytest.approx(engine.tokens / 0.6, rel=0.8)


async def test_a_batch_that_ended_before_closes_no_window(tmp_path: Path) -> None:
    window = Window(ramp_s=0.1, measure_s=0.3, tail_s=0)
    async with counting(tmp_path / "log") as (engine, server):
        engine.done.set()
        found = await measured(engine, server, window)
    assert found.window_s >= 0.2
    assert found.offline_served_per_s == 0


def stage_of(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage whose stock server is that script."""

    def answering(*_: object, **__: object) -> ServerSpec:
        port = free_port()
        command = [sys.executable, "-c", script, str(port)]
        return ServerSpec(command=command, environment=dict(os.environ), port=port, ready_path="/")

    monkeypatch.setattr(plan, "stock_server", answering)
    return Stage(
        folder=tmp_path,
        model=tmp_path,
        online=[],
        lines=1,
        length=plan.Length(),
        screen=Screen(Console(quiet=True)),
    )


async def test_a_server_that_ends_amid_an_arm_is_named_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/troubleshooting.md: the demo ends with the end of a log; it was an internal error."""
    monkeypatch.setattr(Server, "pin", lambda *_: None)
    usable = os.sched_getaffinity(0)
    stage = stage_of(ANSWERS, tmp_path, monkeypatch)
    with pytest.raises(CliError, match=r"stock vLLM, 2048 tokens a step: it ended:\n.*GET /"):
        await ended(stage)
    assert os.sched_getaffinity(0) == usable  # it was kept off the engine's core


async def ended(stage: Stage) -> None:
    async with stock_server(stage) as server:
        os.kill(server.pid, 9)
        await asyncio.to_thread(eventually, lambda: not server.running)
        await snapshot(server)


ANSWERS_BESIDE_AN_ENGINE = f"""
import os, time
told, tells = os.pipe()
if os.fork() == 0:
    open("/proc/self/comm", "w").write({ENGINE_PROCESS!r})
    os.write(tells, b"named")
    time.sleep(600)
os.read(told, 5)
{ANSWERS}
"""


async def test_the_engine_has_a_core_to_itself_in_every_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load generator could run on it, and in the Weir arm alone the control plane as well."""
    cores, usable = available_cores(), os.sched_getaffinity(0)
    async with stock_server(stage_of(ANSWERS_BESIDE_AN_ENGINE, tmp_path, monkeypatch)) as server:
        engine = server.engine_pid()
        assert engine is not None
        assert os.sched_getaffinity(engine) == {cores.engine}
        assert os.sched_getaffinity(server.pid) == {cores.client}
        assert os.sched_getaffinity(0) == {cores.client}
    assert os.sched_getaffinity(0) == usable
