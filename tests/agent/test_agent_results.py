"""Results on their way to the control plane: kept until it has them, bounded, sent once."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from tests.agent.conftest import PATIENCE_S, StartAgent
from tests.support.fake_control_plane import FakeControlPlane, completion_lines
from tests.support.fake_engine import FakeEngine


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
