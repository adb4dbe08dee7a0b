"""The agent as a whole over a fake engine: batches run, hand back, survive; online goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from tests.agent.conftest import PATIENCE_S, StartAgent
from tests.support.fake_control_plane import FakeControlPlane, completion_lines
from tests.support.fake_engine import FakeEngine
from weir_agent.chunks import bodies, feeder
from weir_agent.engine import OfflineLine


async def test_every_line_is_answered_once(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    for first in (1, 33, 65):
        control_plane.add_chunk(completion_lines(32, first=first))
    async with start_agent() as running:
        await running.until(lambda: control_plane.done)
    assert sorted(control_plane.results) == list(range(1, 97))
    assert all(len(records) == 1 for records in control_plane.results.values())
    record = control_plane.results[7][0]
    assert record["response"]["status_code"] == 200
    assert record["response"]["body"]["choices"] == [{"text": "answer to prompt 7"}]
    assert record["usage"] == {
        "input_tokens": 5,
        "cached_tokens": 2,
        "output_tokens": 3,
        "reasoning_tokens": 0,
    }
    assert record["request_id"].startswith("batch_req_")


async def test_a_line_that_asks_for_too_much_fails_alone(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    lines = completion_lines(3)
    lines[1]["body"]["n"] = 99
    control_plane.add_chunk(lines)
    async with start_agent() as running:
        await running.until(lambda: control_plane.done)
    statuses = {n: r[0]["response"]["status_code"] for n, r in control_plane.results.items()}
    assert statuses == {1: 200, 2: 400, 3: 200}
    assert control_plane.results[2][0]["response"]["body"]["error"]["param"] == "n"


async def test_a_line_that_holds_half_a_character_fails_alone(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    lines = completion_lines(4)
    lines[1]["body"]["prompt"] = "a text that was cut within its last character \ud83d"
    lines[2]["body"]["\ud83d"] = "a name that was cut"
    control_plane.add_chunk(lines)
    async with start_agent() as running:
        await running.until(lambda: control_plane.done)
    statuses = {n: r[0]["response"]["status_code"] for n, r in control_plane.results.items()}
    assert statuses == {1: 200, 2: 400, 3: 400, 4: 200}
    errors = [control_plane.results[n][0]["response"]["body"]["error"] for n in (2, 3)]
    assert [error["param"] for error in errors] == ["prompt", r"\ud83d"]


async def test_a_chunk_whose_lines_cannot_be_had_stops_no_other(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """An input file that is gone from the store is one batch's trouble."""
    gone = control_plane.add_chunk(completion_lines(4))
    control_plane.unreadable = {gone}
    for first in (11, 21):
        control_plane.add_chunk(completion_lines(4, first=first))
    with capture_logs() as logs:
        async with start_agent() as running:
            await running.until(lambda: len(control_plane.results) == 8)
            control_plane.unreadable = set()
            await running.until(lambda: control_plane.done)
    assert len(control_plane.results) == 12
    told = {(log["chunk_id"], log["error"]) for log in logs if log["event"] == "chunk.not_read"}
    assert told == {(gone, "503 storage_unavailable: storage_unavailable")}


async def test_a_chunk_that_cannot_be_read_is_handed_back_and_others_come(
    start_agent: StartAgent, control_plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Eight attempts with the pauses of production take half a minute.
    monkeypatch.setattr(feeder, "FETCH_PAUSE_S", 0.01)
    monkeypatch.setattr(feeder, "FETCH_PAUSE_MOST_S", 0.05)
    gone = control_plane.add_chunk(completion_lines(200, first=101))
    control_plane.unreadable = {gone}
    with capture_logs() as logs:
        async with start_agent() as running:
            await running.until(lambda: any(log["event"] == "chunk.not_read" for log in logs))
            control_plane.add_chunk(completion_lines(50))
            await running.until(lambda: len(control_plane.results) == 50)
            await running.until(lambda: any(s["returned"] for s in control_plane.syncs))
            control_plane.unreadable = set()
            await running.until(lambda: control_plane.done)
    assert len(control_plane.results) == 250


async def test_the_window_is_four_times_the_slots(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Design §9: the look-ahead window is at most 4 x the slots."""
    control_plane.add_chunk(completion_lines(64))
    engine = FakeEngine(held=True)
    async with start_agent(engine) as running:
        await running.until(lambda: len(engine.resident) == 16)
        beats = len(engine.policies)
        await running.until(lambda: len(engine.policies) > beats)
        engine.hold.set()
        await running.until(lambda: control_plane.done)
    assert engine.most_resident == 16


async def test_lines_that_waited_for_their_turn_are_due_when_their_batch_is(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    control_plane.add_chunk(completion_lines(40))
    engine = FakeEngine(delay_s=0.05)
    async with start_agent(engine) as running:
        await running.until(lambda: control_plane.done)
    assert len({line.deadline_s for line in engine.executed}) == 1


async def test_solo_lines_run_one_at_a_time_with_no_other_offline_line(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Design §8 rule 5: suspects run one at a time."""
    control_plane.add_chunk(completion_lines(20))
    control_plane.add_chunk(completion_lines(5, first=101), solo=True)
    engine = FakeEngine(delay_s=0.005)
    beside: dict[int, set[int]] = {}
    engine.on_line = lambda line: beside.update({line.line: set(engine.resident)})
    async with start_agent(engine) as running:
        await running.until(lambda: control_plane.done)
    assert {n: beside[n] for n in beside if n > 100} == {n: {n} for n in range(101, 106)}
    assert all(line.solo == (line.line > 100) for line in engine.executed)


async def test_a_suspect_whose_input_is_gone_keeps_nobody_waiting(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """It still runs alone when the input is back."""
    gone = control_plane.add_chunk(completion_lines(2, first=101), solo=True)
    control_plane.unreadable = {gone}
    control_plane.add_chunk(completion_lines(8))
    engine = FakeEngine(delay_s=0.005)
    beside: dict[int, set[int]] = {}
    engine.on_line = lambda line: beside.update({line.line: set(engine.resident)})
    async with start_agent(engine) as running:
        await running.until(lambda: sorted(control_plane.results) == list(range(1, 9)))
        control_plane.add_chunk(completion_lines(40, first=11))
        await running.until(lambda: len(control_plane.chunks) == 3 and 11 in beside)
        control_plane.unreadable = set()
        await running.until(lambda: control_plane.done)
    assert {n: beside[n] for n in (101, 102)} == {101: {101}, 102: {102}}


async def test_no_offline_line_runs_without_a_policy(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    control_plane.policy = None
    control_plane.add_chunk(completion_lines(4))
    async with start_agent() as running:
        await running.until(lambda: len(control_plane.syncs) > 10)
        assert running.engine.executed == []
        assert all(policy["offline_seq_slots"] == 0 for policy in running.engine.policies)


async def test_a_cancelled_chunk_stops_and_commits_what_it_has(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    chunk_id = control_plane.add_chunk(completion_lines(8))
    engine = FakeEngine(held=True)
    engine.holds = lambda line: line.line > 2
    async with start_agent(engine) as running:
        await running.until(lambda: len(engine.executed) == 8 and len(engine.resident) == 6)
        control_plane.cancel[chunk_id] = "cancelled"
        await running.until(lambda: control_plane.done)
        registry = running.agent.stores.metrics.registry
    assert sorted(control_plane.results) == [1, 2]
    assert sorted(engine.cancelled) == [3, 4, 5, 6, 7, 8]
    assert registry.get_sample_value("weir_offline_line_seconds_count") == 2  # what was answered


async def test_control_plane_loss_never_hurts_online_and_work_goes_on_after(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Design §4: after its lease the agent uses its own forecast, then serves online only."""
    assert control_plane.policy is not None
    control_plane.policy["lease_s"] = 3.0  # each of the two stages must be seen
    control_plane.add_chunk(completion_lines(4))
    async with start_agent() as running:
        await running.until(lambda: control_plane.done)
        source = "control_plane"
        while source != "forecast":  # a halt of the machine can outlast that stage: once more
            control_plane.down = False
            await running.until(lambda: running.agent._pulse.active.source == "control_plane")
            control_plane.down = True
            await running.until(lambda: running.agent._pulse.active.source != "control_plane")
            source = running.agent._pulse.active.source
        assert running.engine.policies[-1]["offline_kv_blocks"] == 90  # 100 less its own demand
        async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as client:
            answer = await client.post("/v1/completions", json={"prompt": "x", "stream": True})
        assert answer.text.count("data: ") == 4
        await running.until(lambda: running.engine.policies[-1]["offline_seq_slots"] == 0)
        control_plane.down = False
        control_plane.add_chunk(completion_lines(4, first=101))
        await running.until(lambda: control_plane.done)
    assert len(control_plane.results) == 8


async def test_a_line_is_expected_to_produce_what_a_choice_of_earlier_ones_did(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Each choice is a request of its own in the engine, and KV blocks are left free for each."""
    lines = completion_lines(2)
    for line in lines:
        line["body"] |= {"n": 4, "max_tokens": 100}
    control_plane.add_chunk(lines, solo=True)  # one after the other
    async with start_agent() as running:
        await running.until(lambda: control_plane.done)
    assert [line.expected_output_tokens for line in running.engine.executed] == [100, 3]


class Panic(BaseException):
    """What libraries in Rust raise: no Exception."""


@pytest.mark.parametrize("fault", [KeyError("not foreseen"), Panic("index out of bounds")])
async def test_a_fault_of_the_agents_own_fails_one_line_and_stops_nothing(
    start_agent: StartAgent, control_plane: FakeControlPlane, fault: BaseException
) -> None:
    """A line that neither ran nor had a result held its chunk until the end of its window."""
    control_plane.add_chunk(completion_lines(4))
    engine = FakeEngine()

    def stumble(line: OfflineLine) -> None:
        if line.line == 2:
            raise fault

    engine.on_line = stumble
    async with start_agent(engine) as running:
        await running.until(lambda: control_plane.done)
        async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as client:
            assert (await client.get("/readyz")).status_code == 200
    assert control_plane.results[2][0]["error"]["code"] == "agent_fault"
    assert [control_plane.results[n][0]["response"]["status_code"] for n in (1, 3, 4)] == [200] * 3


async def test_a_body_that_the_agent_stumbles_over_fails_one_line(
    start_agent: StartAgent, control_plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = bodies.prepare

    def stumble(url: str, body: Mapping[str, Any], **options: Any) -> dict[str, Any]:  # noqa: ANN401
        if body["prompt"] == "prompt 2":
            raise KeyError("not foreseen")
        return prepare(url, body, **options)

    monkeypatch.setattr(bodies, "prepare", stumble)
    control_plane.add_chunk(completion_lines(4))
    async with start_agent() as running:
        await running.until(lambda: control_plane.done)
    assert control_plane.results[2][0]["error"]["code"] == "agent_fault"
    assert [control_plane.results[n][0]["response"]["status_code"] for n in (1, 3, 4)] == [200] * 3
