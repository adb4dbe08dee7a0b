"""Which lines enter the engine next, where the control plane's order would stop."""

from __future__ import annotations

import asyncio

import pytest

from tests.agent.conftest import StartAgent
from tests.support.fake_control_plane import FakeControlPlane, completion_lines
from tests.support.fake_engine import FakeEngine


async def test_a_suspect_that_comes_late_does_not_wait_for_what_waits_for_it(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """A real control plane leases it to a pod without work; here it comes to a full pool."""
    control_plane.add_chunk(completion_lines(400))
    engine = FakeEngine(held=True)
    engine.holds = lambda line: line.line > 64  # the first ones make the agent take more
    async with start_agent(engine) as running:
        await running.until(lambda: len(engine.executed) == 80)
        suspect = control_plane.add_chunk(completion_lines(300, first=1001), solo=True)
        await running.until(lambda: control_plane.chunks[suspect].state == "leased")
        engine.hold.set()
        await running.until(lambda: control_plane.done)
    assert len(control_plane.results) == 700
    alone = [line.line for line in engine.executed if line.solo]
    assert alone == sorted(alone)


async def test_a_line_whose_lease_is_lost_before_it_begins_is_no_suspect(
    start_agent: StartAgent, control_plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clean-up never ran: the next crash named it, though the engine never had it."""
    chunk_id = control_plane.add_chunk(completion_lines(8))
    control_plane.lease_work = False
    engine = FakeEngine(held=True)
    async with start_agent(engine) as running:
        await running.until(lambda: running.agent._serving)
        journal, offline = running.agent.stores.journal, running.agent._offline
        assert offline is not None
        enter = journal.enter

        def lose(chunk: str, attempt: int, line: int, *, solo: bool) -> None:
            enter(chunk, attempt, line, solo=solo)
            if line == 5:  # a sync's reply is next in the loop
                asyncio.get_running_loop().call_soon(offline.work.drop, chunk_id)

        monkeypatch.setattr(journal, "enter", lose)
        control_plane.lease_work = True
        await running.until(lambda: sorted(engine.cancelled) == [1, 2, 3, 4])
        monkeypatch.setattr(journal, "enter", enter)
        assert journal.record_death("crash").resident == ()
        engine.hold.set()
        control_plane.chunks[chunk_id].state = "open"
        await running.until(lambda: control_plane.done)
