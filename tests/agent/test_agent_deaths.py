"""What an agent makes of an engine that dies, hangs or is busy, over the wire (§8.5)."""

from __future__ import annotations

import asyncio

import pytest

from tests.agent.conftest import PATIENCE_S, StartAgent
from tests.support.fake_control_plane import FakeControlPlane, completion_lines
from tests.support.fake_engine import FakeEngine
from weir_agent.agent import EngineDiedError


async def test_results_on_their_way_outlive_the_death_of_the_engine(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Design §8 rule 3: they stay on disk until told accepted, stale or gone."""
    control_plane.add_chunk(completion_lines(6))
    control_plane.fail_uploads = 10_000
    first = FakeEngine()
    async with start_agent(first) as running:
        await running.until(lambda: len(first.executed) == 6 and not first.resident)
        offline = running.agent._offline
        assert offline is not None
        await running.until(lambda: bool(offline.work._closers))
        first.dead = True
        with pytest.raises(EngineDiedError):
            await running.task
        async with asyncio.timeout(PATIENCE_S):
            while offline.work._closers:  # noqa: ASYNC110 - as the process would end
                await asyncio.sleep(0.01)
    control_plane.fail_uploads = 0
    second = FakeEngine()
    async with start_agent(second) as running:
        await running.until(lambda: control_plane.done)
    assert sorted(control_plane.results) == [1, 2, 3, 4, 5, 6]
    assert second.executed == []


async def test_an_engine_death_is_recorded_with_its_lines_and_reported_by_the_next_process(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Design §8 rule 5: lines resident in an engine that crashed become suspects."""
    control_plane.add_chunk(completion_lines(6))
    engine = FakeEngine(held=True)
    async with start_agent(engine) as running:
        await running.until(lambda: len(engine.resident) == 6)
        engine.dead = True
        engine.hold.set()
        with pytest.raises(EngineDiedError, match="crash"):
            await running.task
    async with start_agent() as running:
        await running.until(lambda: control_plane.done and bool(control_plane.deaths))
        await running.until(lambda: not running.agent.stores.journal.deaths())
    (death,) = control_plane.deaths.values()
    assert (death["kind"], death["solo"]) == ("crash", False)
    assert sorted(entry["line"] for entry in death["resident"]) == [1, 2, 3, 4, 5, 6]
    assert {entry["attempt"] for entry in death["resident"]} == {1}
    assert sorted(control_plane.results) == [1, 2, 3, 4, 5, 6]


async def test_no_line_is_suspected_that_came_after_the_death(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Design §8 rule 5: a solo chunk's death names one line."""
    control_plane.add_chunk(completion_lines(6), solo=True)
    engine = FakeEngine(held=True)
    async with start_agent(engine) as running:
        await running.until(lambda: len(engine.resident) == 1)
        engine.dead = True
        engine.hold.set()
        with pytest.raises(EngineDiedError):
            await running.task
    (death,) = control_plane.deaths.values()
    assert (death["solo"], [entry["line"] for entry in death["resident"]]) == (True, [1])


async def test_an_engine_that_is_stopped_with_its_agent_suspects_no_line(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Design §8 rule 5: drains do not count."""
    control_plane.add_chunk(completion_lines(6))
    engine = FakeEngine(held=True)
    async with start_agent(engine) as running:
        await running.until(lambda: len(engine.resident) == 6)
        engine.dead = True  # SIGTERM to a whole control group
        running.agent.request_stop()
        engine.hold.set()
        await asyncio.wait_for(running.task, PATIENCE_S)
    assert control_plane.deaths == {}
    assert control_plane.chunks["chunk-0"].state == "open"


async def test_a_silent_engine_is_taken_for_hung_and_killed(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    control_plane.add_chunk(completion_lines(1), solo=True)
    engine = FakeEngine(held=True)
    async with start_agent(engine, hang_after_s=3.0) as running:
        await running.until(lambda: len(engine.resident) == 1)
        engine.silent = True
        with pytest.raises(EngineDiedError, match="hang"):
            await asyncio.wait_for(running.task, PATIENCE_S)
    assert engine.killed
    (death,) = control_plane.deaths.values()
    assert (death["kind"], death["solo"], death["resident"][0]["line"]) == ("hang", True, 1)
    assert control_plane.syncs[-1]["state"] == "engine_down"


async def test_a_busy_engine_gets_the_line_again(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    control_plane.add_chunk(completion_lines(2))
    engine = FakeEngine()
    engine.refuse_times = 3
    async with start_agent(engine) as running:
        await running.until(lambda: control_plane.done)
    assert [r[0]["response"]["status_code"] for r in control_plane.results.values()] == [200, 200]
