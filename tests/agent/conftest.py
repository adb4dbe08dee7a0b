"""An agent over a fake engine, with a control plane in memory, both over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.fake_control_plane import FakeControlPlane
from tests.support.fake_engine import FakeEngine
from tests.support.serving import serve
from weir_agent.agent import Agent, EngineDiedError
from weir_agent.settings import load_settings
from weir_agent.supervisor import bind

PATIENCE_S = 120.0  # a busy machine holds a process up for seconds


class Running:
    """A running agent and what surrounds it."""

    def __init__(self, agent: Agent, engine: FakeEngine, bound: socket.socket) -> None:
        self.agent = agent
        self.engine = engine
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        self.task = asyncio.create_task(agent.run(bound))

    async def until(self, condition: Callable[[], bool], *, within_s: float = PATIENCE_S) -> None:
        """Returns when the condition holds."""
        async with asyncio.timeout(within_s):
            while not condition():
                if self.task.done():
                    self.task.result()
                    raise AssertionError("the agent ended")
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """SIGTERM, in effect."""
        self.agent.request_stop()
        await asyncio.wait_for(self.task, PATIENCE_S)


StartAgent = Callable[..., contextlib.AbstractAsyncContextManager[Running]]


@pytest.fixture
def control_plane() -> FakeControlPlane:
    return FakeControlPlane()


@pytest.fixture
def start_agent(tmp_path: Path, control_plane: FakeControlPlane) -> StartAgent:
    """``async with start_agent(engine, **settings) as running``."""

    @contextlib.asynccontextmanager
    async def start(engine: FakeEngine | None = None, **given: object) -> AsyncIterator[Running]:
        async with serve(control_plane.app) as url:
            settings = load_settings(
                **{
                    "agent_id": "agent-1",
                    "data_dir": tmp_path / "agent",
                    "control_plane_url": url,
                    "lookahead_lines_per_s": 10_000,
                    # Long enough for a machine that stands still amid it.
                    "drain_s": 60,
                    "hand_back_s": 60,
                    "sync_timeout_s": 60,
                    "spool_max_bytes": 1 << 30,
                    **given,
                }
            )
            engine = engine or FakeEngine()
            bound = bind("127.0.0.1", 0)
            running = Running(Agent(settings, engine), engine, bound)
            try:
                yield running
            finally:
                running.agent.request_stop()
                engine.hold.set()
                with contextlib.suppress(EngineDiedError):
                    await asyncio.wait_for(running.task, PATIENCE_S)
                bound.close()

    return start
