"""What the agent takes for the end of its engine, and what it does not."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.agent.conftest import PATIENCE_S, StartAgent
from tests.support.fake_control_plane import FakeControlPlane, completion_lines
from tests.support.fake_engine import FakeEngine
from weir_agent.agent import Agent, EngineDiedError
from weir_agent.settings import load_settings
from weir_agent.supervisor import bind


async def test_an_agent_that_stood_still_ends_no_engine_that_answers(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """As after `docker pause` or a frozen control group: the silence was the agent's own."""
    control_plane.add_chunk(completion_lines(4))
    engine = FakeEngine(held=True)
    async with start_agent(engine, hang_after_s=3.0) as running:
        await running.until(lambda: len(engine.resident) == 4)
        for _ in range(2):
            beats = len(engine.policies)
            await running.until(lambda beats=beats: len(engine.policies) > beats)  # type: ignore[misc]
            time.sleep(4.0)  # noqa: ASYNC251 - nothing of the agent runs meanwhile
        beats = len(engine.policies)
        await running.until(lambda: len(engine.policies) > beats + 1)
        assert not engine.killed
        async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as client:
            assert (await client.get("/readyz")).status_code == 200
        engine.hold.set()
        await running.until(lambda: control_plane.done)
    assert control_plane.deaths == {}


async def test_lines_that_a_living_engine_aborts_run_again(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """As vLLM does when it is paused; an engine that ends looks the same at first."""
    control_plane.add_chunk(completion_lines(6))
    engine = FakeEngine(held=True)
    engine.holds = lambda line: line.line > 2
    async with start_agent(engine) as running:
        await running.until(lambda: engine.resident == {3, 4, 5, 6})
        engine.aborts.set()
        await running.until(lambda: any(s["state"] == "engine_down" for s in control_plane.syncs))
        assert len(running.agent.stores.journal.recover()) == 4  # suspects, should it die now
        engine.aborts.clear()
        await running.until(lambda: engine.resident == {3, 4, 5, 6})
        await running.until(lambda: control_plane.syncs[-1]["state"] == "serving")
        engine.hold.set()
        await running.until(lambda: control_plane.done)
        assert running.agent.stores.journal.recover() == {}
    assert {line: len(records) for line, records in control_plane.results.items()} == dict.fromkeys(
        range(1, 7), 1
    )
    assert control_plane.deaths == {}


def test_the_death_of_an_engine_leaves_no_stack_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The restart is expected; what the loop cancels at its end would speak of an error."""

    async def main() -> None:
        engine = FakeEngine()
        settings = load_settings(data_dir=tmp_path)
        agent = Agent(settings, engine, on_ready=lambda: setattr(engine, "dead", True))
        with closing(bind("127.0.0.1", 0)) as bound, pytest.raises(EngineDiedError):
            await agent.run(bound)

    asyncio.run(main())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
