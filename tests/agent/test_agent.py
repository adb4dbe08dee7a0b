"""The agent as a whole over a fake engine: batches run, hand back, survive; online goes on."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from tests.agent.conftest import PATIENCE_S, StartAgent
from tests.support.fake_control_plane import FakeControlPlane, completion_lines
from tests.support.fake_engine import FakeEngine
from weir_agent.agent import EngineDiedError
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


async def test_stopping_commits_what_is_finished_and_returns_the_rest(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Design §8 rule 4: drain commits in part; a lost line is recomputed, never repeated."""
    control_plane.add_chunk(completion_lines(8))
    control_plane.add_chunk(completion_lines(8, first=9))
    engine = FakeEngine(held=True)
    engine.holds = lambda line: line.line > 3
    async with start_agent(engine) as running:
        await running.until(lambda: len(engine.resident) == 13)
        await running.stop()
    assert sorted(control_plane.results) == [1, 2, 3]
    (commit,) = control_plane.commits
    assert (commit["final"], commit["lines"]) == (False, [[1, 3]])
    assert control_plane.syncs[-1]["state"] == "draining"
    returned = {c["chunk_id"] for sync in control_plane.syncs for c in sync["returned"]}
    assert returned == {"chunk-1"}
    assert control_plane.chunks["chunk-1"].state == "open"
    assert engine.stopped


async def test_a_restarted_agent_keeps_stored_results_of_adopted_chunks(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Design §8 rules 3 and 12: results stay on disk; a restart adopts its predecessor's leases."""
    control_plane.add_chunk(completion_lines(6))
    control_plane.fail_uploads = 10_000
    first = FakeEngine()
    async with start_agent(first, hand_back_s=0) as running:
        await running.until(lambda: len(first.executed) == 6 and not first.resident)
    assert control_plane.results == {}
    control_plane.fail_uploads = 0
    second = FakeEngine()
    async with start_agent(second) as running:
        await running.until(lambda: control_plane.done)
    assert sorted(control_plane.results) == [1, 2, 3, 4, 5, 6]
    assert second.executed == []
    assert control_plane.commits[0]["attempt"] == 2


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


async def test_a_lost_commit_reply_doubles_nothing(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Design §8 rule 2: a repeated commit is answered the same."""
    control_plane.add_chunk(completion_lines(5))
    control_plane.lose_commit_replies = 2
    async with start_agent() as running:
        with capture_logs() as logs:
            await running.until(
                lambda: not running.agent.stores.spool.reserved_bytes and control_plane.done
            )
    assert all(len(records) == 1 for records in control_plane.results.values())
    assert (len(control_plane.commits), control_plane.bodies) == (1, 1)
    told = {log["chunk_id"] for log in logs if log["event"] == "chunk.not_delivered"}
    assert told == {"chunk-0"}


async def test_an_upload_that_the_control_plane_lost_is_sent_again(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    control_plane.add_chunk(completion_lines(5))
    control_plane.lose_uploads = 1
    async with start_agent() as running:
        await running.until(lambda: control_plane.done)
    assert (len(control_plane.results), control_plane.bodies) == (5, 2)
    assert len(running.engine.executed) == 5  # nothing was run twice


async def test_uploads_that_hang_keep_no_lease_from_being_renewed(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """A slow file store: results pile up, and syncs go on, or every lease of them would end."""
    control_plane.hold_uploads = asyncio.Event()
    for first in range(1, 121):
        control_plane.add_chunk(completion_lines(1, first=first))
    engine = FakeEngine()
    async with start_agent(engine, sync_timeout_s=2) as running:
        await running.until(lambda: len(engine.executed) == 120)
        before = len(control_plane.syncs)
        try:
            await running.until(lambda: len(control_plane.syncs) > before + 20, within_s=30)
            assert len(control_plane.syncs[-1]["chunks"]) == 120
        finally:
            control_plane.hold_uploads.set()
        await running.until(lambda: control_plane.done)
    assert sorted(control_plane.results) == list(range(1, 121))


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


async def test_a_lost_lease_is_dropped_with_its_results(
    start_agent: StartAgent, control_plane: FakeControlPlane, tmp_path: Path
) -> None:
    control_plane.add_chunk(completion_lines(8))
    engine = FakeEngine(held=True)
    async with start_agent(engine) as running:
        await running.until(lambda: len(engine.resident) == 8)
        control_plane.lease_work = False
        control_plane.lost = ["chunk-0"]
        await running.until(lambda: not engine.resident)
        assert list((tmp_path / "agent" / "chunks").iterdir()) == []
    assert control_plane.results == {}
    assert engine.cancelled


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


async def test_a_result_over_the_bound_is_that_lines_error(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Design §8 rule 3: a result over the bound becomes that line's error."""
    lines = completion_lines(2)
    lines[0]["body"]["prompt"] = "x" * 5000
    control_plane.add_chunk(lines)
    async with start_agent(result_max_bytes=4096) as running:
        await running.until(lambda: control_plane.done)
    assert control_plane.results[1][0]["error"]["code"] == "result_too_large"
    assert control_plane.results[1][0]["response"] is None
    assert control_plane.results[2][0]["response"]["status_code"] == 200


async def test_a_chunk_whose_worst_case_does_not_fit_is_handed_back(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Design §8 rule 3: the worst case is reserved before a chunk is taken."""
    control_plane.add_chunk(completion_lines(64))
    async with start_agent(spool_max_bytes=9 << 20) as running:
        await running.until(lambda: any(sync["returned"] for sync in control_plane.syncs))
        assert running.engine.executed == []
    assert 0 < max(sync["room"]["result_bytes"] for sync in control_plane.syncs) <= 9 << 20
    assert control_plane.syncs[-1]["room"]["lines"] == 0  # no second try at once


async def test_probes_and_metrics(start_agent: StartAgent) -> None:
    async with (
        start_agent() as running,
        httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as client,
    ):
        await running.until(lambda: running.agent._serving)
        assert (await client.get("/readyz")).status_code == 200
        await client.post("/v1/completions", json={"prompt": "x", "stream": True})
        metrics = (await client.get("/metrics")).text
        assert "weir_online_ttft_seconds_count 1.0" in metrics
        assert "weir_online_tbt_seconds_count 2.0" in metrics
        assert 'weir_kv_blocks{class="offline"} 5.0' in metrics


@pytest.mark.parametrize("given", [{}, {"control_plane_url": None}], ids=["with", "without"])
async def test_a_policy_is_missed_only_where_a_control_plane_could_give_one(
    start_agent: StartAgent, given: dict[str, None]
) -> None:
    """Services without colocation have none: an alert on its policy would never end."""
    async with (
        start_agent(**given) as running,
        httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as client,
    ):
        await running.until(lambda: running.engine.policies != [])
        metrics = (await client.get("/metrics")).text
        assert 'weir_kv_blocks{class="offline"}' in metrics
        assert ('weir_policy_source{source="control_plane"}' in metrics) == (not given)


async def test_probes_while_draining(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    control_plane.add_chunk(completion_lines(1))
    control_plane.fail_uploads = 10_000  # handing it back goes on until the test has looked
    async with (
        start_agent(hand_back_s=PATIENCE_S) as running,
        httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as client,
    ):
        await running.until(lambda: control_plane.fail_uploads < 10_000)
        running.agent.request_stop()
        assert (await client.get("/readyz")).text == "draining\n"
        assert (await client.get("/healthz")).status_code == 200
        control_plane.fail_uploads = 0
        await asyncio.wait_for(running.task, PATIENCE_S)
    assert control_plane.done


async def test_draining_finishes_streams_that_run(start_agent: StartAgent) -> None:
    async with start_agent(FakeEngine(delay_s=0.3)) as running:
        await running.until(lambda: running.agent._serving)
        async with (
            httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as client,
            client.stream("POST", "/v1/completions", json={"prompt": "x"}) as answer,
        ):
            running.agent.request_stop()
            text = (await answer.aread()).decode()
    assert text.count('"text"') == 3
    assert json.loads(text.split("data: ")[3].split("\n")[0])["choices"] == [{"text": "c"}]


async def test_a_fault_while_work_is_handed_back_cuts_no_stream(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    control_plane.add_chunk(completion_lines(4))
    engine = FakeEngine(held=True, delay_s=0.3)
    async with start_agent(engine) as running:
        await running.until(lambda: len(engine.resident) == 4)
        engine.step_mean_s = float("nan")  # what no body of a sync can say
        beats = len(engine.policies)
        await running.until(lambda: len(engine.policies) > beats)
        async with (
            httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as client,
            client.stream("POST", "/v1/completions", json={"prompt": "x"}) as answer,
        ):
            running.agent.request_stop()
            text = (await answer.aread()).decode()
        await asyncio.wait_for(running.task, PATIENCE_S)
    assert text.count('"text"') == 3
    assert engine.stopped


async def test_a_full_disk_is_a_state_and_loses_nothing(
    start_agent: StartAgent, control_plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design §8 rule 3: what is stored is delivered, the rest handed back; then work goes on."""
    control_plane.add_chunk(completion_lines(8))
    full = {"value": False}
    write = os.pwrite

    def pwrite(descriptor: int, content: bytes, offset: int) -> int:
        if full["value"]:
            write(descriptor, content[:3], offset)  # a torn write, as full disks do
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content, offset)

    monkeypatch.setattr("weir_agent.chunks.spool.os.pwrite", pwrite)
    monkeypatch.setattr("weir_agent.chunks.disk.NO_ROOM_S", 0.5)
    engine = FakeEngine(held=True)
    engine.holds = lambda line: line.line > 3
    async with start_agent(engine) as running:
        await running.until(lambda: len(engine.resident) == 5)
        full["value"] = True
        engine.hold.set()
        await running.until(lambda: any(s["state"] == "disk_full" for s in control_plane.syncs))
        await running.until(lambda: sorted(control_plane.results) == [1, 2, 3])
        async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as client:
            answer = await client.post("/v1/completions", json={"prompt": "x", "stream": True})
        assert answer.status_code == 200
        full["value"] = False
        await running.until(lambda: control_plane.done)
    assert sorted(control_plane.results) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(len(records) == 1 for records in control_plane.results.values())


async def test_a_fault_of_the_agents_own_fails_one_line_and_stops_nothing(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    control_plane.add_chunk(completion_lines(4))
    engine = FakeEngine()

    def stumble(line: OfflineLine) -> None:
        if line.line == 2:
            raise KeyError("not foreseen")

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


async def test_a_report_that_fails_does_not_stop_the_agent(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    engine = FakeEngine()
    telemetry = engine.telemetry
    failed = asyncio.Event()

    async def broken() -> None:
        failed.set()
        raise RuntimeError("the scheduler could not report")

    async with start_agent(engine) as running:
        await running.until(lambda: bool(engine.policies))
        engine.telemetry = broken  # type: ignore[method-assign,assignment]
        await running.until(failed.is_set)
        syncs = len(control_plane.syncs)
        await running.until(lambda: len(control_plane.syncs) > syncs)
        engine.telemetry = telemetry  # type: ignore[method-assign]
        policies = len(engine.policies)
        await running.until(lambda: len(engine.policies) > policies)
        assert not engine.killed
