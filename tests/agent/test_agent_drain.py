"""What an agent answers to probes, and how it stops."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tests.agent.conftest import PATIENCE_S, StartAgent
from tests.support.fake_control_plane import FakeControlPlane, completion_lines
from tests.support.fake_engine import FakeEngine


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


async def test_what_a_call_on_its_way_leases_is_returned_too(
    start_agent: StartAgent, control_plane: FakeControlPlane
) -> None:
    """Design §9: hand back; a lease that nobody returned would keep its lines until it ends."""
    async with start_agent() as running:
        await running.until(lambda: len(control_plane.syncs) > 2)
        control_plane.hold_syncs = asyncio.Event()
        control_plane.next_sync_s = 60.0
        chunk = control_plane.chunks[control_plane.add_chunk(completion_lines(8))]
        await running.until(lambda: chunk.state == "leased")
        running.agent.request_stop()
        await running.until(lambda: running.agent._stop.is_set() and not running.agent._serving)
        control_plane.hold_syncs.set()
        await asyncio.wait_for(running.task, PATIENCE_S)
    assert control_plane.syncs[-1]["state"] == "draining"
    assert chunk.state == "open"


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
