"""Which lines enter the engine next, where the control plane's order would stop."""

from __future__ import annotations

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
