"""An agent whose policy lets no batch line run keeps no chunk from other pods."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.agent.conftest import Running, StartAgent
from tests.support.fake_control_plane import FakeControlPlane, completion_lines
from tests.support.fake_engine import FakeEngine
from weir_agent.chunks import slots


def set_slots(control_plane: FakeControlPlane, count: int) -> None:
    assert control_plane.policy is not None
    control_plane.policy = {**control_plane.policy, "offline_seq_slots": count}


async def take_slots(control_plane: FakeControlPlane, running: Running, engine: FakeEngine) -> None:
    set_slots(control_plane, 0)
    beats = len(engine.policies)
    await running.until(lambda: len(engine.policies) > beats + 2)


async def test_an_agent_without_slots_takes_no_chunk(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    set_slots(control_plane, 0)
    chunk_id = control_plane.add_chunk(completion_lines(4))
    async with start_agent() as running:
        await running.until(lambda: len(control_plane.syncs) > 10)
        assert control_plane.chunks[chunk_id].state == "open"
        set_slots(control_plane, 4)
        await running.until(lambda: control_plane.done)


async def test_without_slots_for_long_what_has_not_begun_is_handed_back(
    start_agent: StartAgent, control_plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs goes on: its computed tokens would be lost."""
    begun = control_plane.add_chunk(completion_lines(32))
    waits = control_plane.add_chunk(completion_lines(8, first=101))
    engine = FakeEngine(held=True)
    async with start_agent(engine) as running:
        await running.until(lambda: len(engine.resident) == 16)
        await take_slots(control_plane, running, engine)
        assert control_plane.chunks[waits].state == "leased"  # a burst may be over soon
        monkeypatch.setattr(slots, "NO_SLOTS_S", 0.0)
        await running.until(lambda: control_plane.chunks[waits].state == "open")
        assert control_plane.chunks[begun].state == "leased"
        assert engine.cancelled == []
        set_slots(control_plane, 4)
        engine.hold.set()
        await running.until(lambda: control_plane.done)
    assert sorted(control_plane.results) == [*range(1, 33), *range(101, 109)]
    assert all(len(records) == 1 for records in control_plane.results.values())


async def test_without_slots_for_long_what_is_left_of_a_chunk_goes_to_other_pods(
    start_agent: StartAgent, control_plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decision 28: a chunk of which nothing runs is kept by nobody; its results are committed."""
    begun = control_plane.add_chunk(completion_lines(32))
    engine = FakeEngine(held=True)
    async with start_agent(engine) as running:
        await running.until(lambda: len(engine.resident) == 16)
        await take_slots(control_plane, running, engine)
        engine.hold.set()
        await running.until(lambda: len(engine.resident) == 0)
        monkeypatch.setattr(slots, "NO_SLOTS_S", 0.0)
        await running.until(lambda: control_plane.chunks[begun].state == "closed")
        assert sorted(control_plane.results) == list(range(1, 17))
        assert [c.state for c in control_plane.chunks.values()] == ["closed", "open"]
        assert engine.cancelled == []


async def test_lines_that_an_engine_with_slots_passes_over_go_to_other_pods(
    start_agent: StartAgent, control_plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each longer than the offline KV threshold: they were kept until the batch expired."""
    begun = control_plane.add_chunk(completion_lines(8))
    engine = FakeEngine(held=True)
    monkeypatch.setattr(slots, "NO_SLOTS_S", 0.0)
    monkeypatch.setattr(slots, "STUCK_S", 0.0)
    async with start_agent(engine) as running:
        await running.until(lambda: len(engine.resident) == 8)
        beats = len(engine.policies)
        await running.until(lambda: len(engine.policies) > beats + 3)
        assert control_plane.chunks[begun].state == "leased"  # they run
        control_plane.lease_work = False
        engine.passes_over = True
        await running.until(lambda: control_plane.chunks[begun].state == "open")
        assert sorted(engine.cancelled) == list(range(1, 9))
        engine.passes_over = False
        engine.hold.set()
        control_plane.lease_work = True
        await running.until(lambda: control_plane.done)
    assert all(len(records) == 1 for records in control_plane.results.values())


async def test_lines_that_wait_in_an_engine_without_slots_go_to_other_pods_at_last(
    start_agent: StartAgent, control_plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-ahead holds more lines than run; without slots the rest of them never starts."""
    begun = control_plane.add_chunk(completion_lines(8))
    engine = FakeEngine(held=True)
    engine.holds = lambda line: line.line > 2
    async with start_agent(engine) as running:
        await running.until(lambda: engine.resident == {3, 4, 5, 6, 7, 8})
        set_slots(control_plane, 0)
        monkeypatch.setattr(slots, "NO_SLOTS_S", 0.0)
        beats = len(engine.policies)
        await running.until(lambda: len(engine.policies) > beats + 3)
        assert control_plane.chunks[begun].state == "leased"
        monkeypatch.setattr(slots, "STUCK_S", 0.0)
        await running.until(lambda: control_plane.chunks[begun].state == "closed")
        assert sorted(control_plane.results) == [1, 2]
        assert sorted(engine.cancelled) == [3, 4, 5, 6, 7, 8]
        engine.holds = lambda _line: False
        set_slots(control_plane, 4)
        await running.until(lambda: control_plane.done)
    assert all(len(records) == 1 for records in control_plane.results.values())


def test_what_is_given_up_as_stuck_is_not_taken_again_at_once() -> None:
    """A suspect has one pod that it may run on: it came back to the one where it does not fit."""
    now_s = 0.0
    held = slots.Slots(clock=lambda: now_s)
    held.set(4, idle=True)
    chunk: Any = SimpleNamespace(closing=None, running=True)
    assert held.given_up([chunk]) == []
    again = [held.were_stuck]
    now_s = slots.STUCK_S + 1
    assert held.given_up([chunk]) == [chunk]
    again.append(held.were_stuck)
    for count, passed_s in ((5, 0.0), (4, 0.0), (4, slots.STUCK_S)):
        held.set(count)
        now_s += passed_s
        again.append(held.were_stuck)
    assert again == [False, True, False, True, False]
