"""What an operator sees of a batch whose validation or end is tried in vain."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import openai
import pytest
from sqlalchemy import text, update
from structlog.testing import capture_logs

from tests.controlplane.bench import put_submitted
from tests.controlplane.jobs import ENDPOINT, Lab, input_lines
from tests.controlplane.support import batch_reaches, eventually, make_settings
from weir_controlplane.app import make_services
from weir_controlplane.batches import worker
from weir_controlplane.batches.failing import count_stuck, read_failing
from weir_controlplane.batches.metrics import running
from weir_controlplane.batches.worker import work_once
from weir_controlplane.files.storage import Storage
from weir_controlplane.leases import STILL_S, kept_alive
from weir_controlplane.services import Services
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.models import Batch


async def failing(desk: Lab) -> list[dict[str, Any]]:
    queue = (await desk.plane.admin.get("/internal/v1/queue")).json()
    found: list[dict[str, Any]] = queue["failing"]
    return found


async def fails_often(desk: Lab, times: int) -> dict[str, Any]:
    """The only batch that fails, once it has failed so often; nobody waits for its pauses."""

    async def often() -> bool:
        async with desk.plane.services.database.transaction() as session:
            pause_over = update(Batch).where(Batch.work_nonce.is_(None))
            await session.execute(pause_over.values(work_lease_until=0.0))
        await desk.plane.services.nudge.send("batches")
        found = await failing(desk)
        return bool(found) and found[0]["failures"] >= times

    await eventually(often)
    (batch,) = await failing(desk)
    return batch


def broken(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_arguments: object) -> NoReturn:
        raise error

    return fail


async def create(client: openai.AsyncOpenAI) -> str:
    file = await client.files.create(file=("in.jsonl", input_lines(4)), purpose="batch")
    made = await client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
    )
    return made.id


async def test_an_outage_of_the_file_store_is_seen_with_its_batches(
    desk: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await failing(desk) == []
    with monkeypatch.context() as patched:
        refused = ConnectionRefusedError("store:9000 refuses")
        patched.setattr(Storage, "_read_ranges", broken(refused))
        batch_id = await create(desk.openai)
        seen = await fails_often(desk, 3)
        assert (seen["batch_id"], seen["stage"]) == (batch_id, "validating")
        assert seen["error"] == "ConnectionRefusedError: store:9000 refuses"
        assert 0 <= seen["retry_in_s"] <= 60
        async with desk.plane.services.database.transaction() as session:  # the clock went back
            later = update(Batch).values(work_nonce=None, work_lease_until=db_now() + 18_000)
            await session.execute(later)
            (due,) = await read_failing(session)
        assert due.retry_in_s == 0

        async def alerted() -> bool:
            text = (await desk.plane.admin.get("/metrics")).text
            return 'weir_batches_stuck{stage="validating"} 1.0' in text

        await eventually(alerted)
    await batch_reaches(desk.openai, batch_id, "in_progress")
    assert await failing(desk) == []


async def test_an_error_that_nobody_expected_shows_nothing_of_what_was_read(
    desk: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = await desk.submit(4)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    monkeypatch.setattr(Storage, "_create", broken(ValueError("the prompt of line 1")))
    await desk.openai.batches.cancel(batch_id)
    for lease in list(agent.held.values()):
        agent.give_back(lease)
    await agent.sync()
    monkeypatch.setattr(Storage, "_read_ranges", broken(ValueError("the prompt of line 1")))
    seen = await fails_often(desk, 1)
    assert (seen["stage"], seen["error"]) == ("cancelling", "ValueError")


@pytest.fixture
async def on_postgres(tmp_path: Path, postgres_url: str) -> AsyncIterator[Services]:
    """One replica without its loops."""
    services = make_services(make_settings(tmp_path, postgres_url))
    await services.database.open()
    yield services
    await services.database.close()


@pytest.mark.postgres
async def test_a_connection_that_breaks_under_a_batch_is_told_in_one_line(
    on_postgres: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wrong with the batch, nor with the control plane: there is no stack to read."""
    services = on_postgres
    async with services.storage.writer("files/in") as writer:
        await writer.write(input_lines(4))
    batch_id = await put_submitted(services.database, content=input_lines(4))
    async with services.database.transaction() as session:
        await session.execute(update(Batch).values(endpoint=ENDPOINT))

    async def cut_off(*_arguments: object) -> None:
        async with services.database.transaction() as session:
            await session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(worker, "take_in", cut_off)
        assert await work_once(services)
    (told,) = [log for log in logs if log["event"] == "batch_work_failed"]
    assert "terminating connection" in told["error"]
    assert not told["exc_info"]
    async with services.database.transaction() as session:
        await session.execute(update(Batch).values(work_lease_until=0.0))  # its pause is over
    assert await work_once(services)
    async with services.database.read() as session:
        batch = await session.get_one(Batch, batch_id)
    assert (batch.status, batch.total_lines) == ("in_progress", 4)


async def test_a_hang_in_one_replica_leaves_the_batch_to_others(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.2: its file store does not answer there, though the process lives and renews."""
    monkeypatch.setattr("weir_controlplane.leases.STILL_S", 0.5)
    settings = make_settings(tmp_path, database_url, work_lease_s=1)
    hung, other = make_services(settings), make_services(settings)
    await hung.database.open()
    other = replace(other, database=hung.database)
    async with hung.storage.writer("files/in") as writer:
        await writer.write(input_lines(4))
    batch_id = await put_submitted(hung.database, content=input_lines(4))
    async with hung.database.transaction() as session:
        await session.execute(update(Batch).values(endpoint=ENDPOINT))
    answers = threading.Event()
    read = hung.storage.blocking_read

    def hang(key: str, start: int, end: int) -> bytes:
        answers.wait()
        return read(key, start, end)

    monkeypatch.setattr(hung.storage, "blocking_read", hang)
    working = asyncio.create_task(work_once(hung))
    try:

        async def is_stuck() -> bool:
            async with hung.database.read() as session:
                return (await count_stuck(session))["validating"] == 1

        await eventually(is_stuck)
        async with hung.database.read() as session:
            (seen,) = await read_failing(session)
        assert (seen.batch_id, seen.stage) == (batch_id, "validating")
        assert seen.error == "nothing moved for 15 minutes: does the file store hang?"

        async with hung.database.transaction() as session:
            await session.execute(update(Batch).values(work_lease_until=0.0))  # its pause is over
        assert await work_once(other)
        answers.set()
        assert await working  # what wakes up then changes nothing
        async with hung.database.read() as session:
            batch = await session.get_one(Batch, batch_id)
        assert (batch.status, batch.total_lines) == ("in_progress", 4)
    finally:
        answers.set()
        await hung.database.close()


async def test_work_that_moves_on_keeps_its_lease() -> None:
    """However long it takes in all."""
    now_s = 0.0
    renewed = asyncio.Event()

    async def renew() -> None:
        renewed.set()

    async def lose() -> NoReturn:
        raise AssertionError("it was given up")

    leased = kept_alive(renew, length_s=0.03, give_up=lose, clock_s=lambda: now_s)
    async with leased as held:
        for _ in range(3):
            now_s += 0.9 * STILL_S
            renewed.clear()
            await renewed.wait()
            assert held.wanted()


async def test_a_renewal_that_misses_its_cancellation_ends_with_the_work() -> None:
    """Libraries have lost one that met a result: whoever worked must not wait for the lease."""
    renewing, renewals = asyncio.Event(), 0

    async def renew() -> None:
        nonlocal renewals
        renewals += 1
        with suppress(asyncio.CancelledError):
            renewing.set()
            await asyncio.sleep(60)

    async with asyncio.timeout(5):
        async with kept_alive(renew, length_s=0.03):
            await renewing.wait()
    assert renewals == 1


async def test_a_clock_that_went_back_makes_no_idle_time_negative(desk: Lab) -> None:
    batch_id = await create(desk.openai)
    await batch_reaches(desk.openai, batch_id, "in_progress")
    async with desk.plane.services.database.transaction() as session:
        await session.execute(update(Batch).values(in_progress_at=db_now() + 18_000))
        (sample,) = await running(session)
    assert sample.idle_s == 0
