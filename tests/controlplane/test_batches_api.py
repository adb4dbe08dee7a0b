"""`/v1/batches`: progress, cancelling, expiry, tenants, quotas (design.md §8.6)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import select, update

from tests.controlplane.batch_calls import ENDPOINT, create, lines, upload
from tests.controlplane.fleet import Fleet
from tests.controlplane.support import Plane, eventually, make_settings, running
from weir_controlplane.store.models import Batch, Chunk


@pytest.fixture
async def plane(tmp_path: Path, database_url: str) -> AsyncIterator[Plane]:
    settings = make_settings(tmp_path, database_url, chunk_lines=4, min_completion_window_s=1)
    async with running(settings) as plane:
        yield plane


async def test_progress_counts_committed_lines(plane: Plane, client: openai.AsyncOpenAI) -> None:
    batch_id = await create(client, await upload(client, lines(10)))
    fleet = Fleet(plane.services)
    await fleet.until(client, batch_id, "in_progress")
    await fleet.finish(batch_id, fails={1}, chunks=2)
    counts = (await client.batches.retrieve(batch_id)).request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (10, 7, 1)
    listed = [batch.request_counts async for batch in client.batches.list()]
    assert listed == [counts]


def ids_of(content: str) -> list[str]:
    return [json.loads(line)["custom_id"] for line in content.splitlines()]


async def test_cancelling_keeps_what_is_committed(plane: Plane, client: openai.AsyncOpenAI) -> None:
    """§8.6: what is committed is kept, once, and the rest gets error lines."""
    batch_id = await create(client, await upload(client, lines(10)))
    fleet = Fleet(plane.services)
    await fleet.until(client, batch_id, "in_progress")
    await fleet.finish(batch_id, chunks=1)
    assert (await client.batches.cancel(batch_id)).status == "cancelling"
    batch = await fleet.until(client, batch_id, "cancelled")
    assert batch.cancelling_at is not None
    assert batch.cancelled_at is not None
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (4, 6)
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    kept = (await client.files.content(batch.output_file_id)).text
    rest = (await client.files.content(batch.error_file_id)).text
    assert sorted(ids_of(kept) + ids_of(rest)) == sorted(f"c{n}" for n in range(10))
    for text in rest.splitlines():
        value = json.loads(text)
        assert value["response"] is None
        assert value["error"]["code"] == "batch_cancelled"
    assert {chunk.state for chunk in await fleet.chunks(batch_id)} == {"done", "closed"}
    with pytest.raises(openai.BadRequestError, match="cancelled cannot be cancelled"):
        await client.batches.cancel(batch_id)  # never 409: the client would repeat it


async def test_holders_of_chunks_have_grace_to_commit_after_a_cancel(
    plane: Plane, client: openai.AsyncOpenAI
) -> None:
    """§8.4: 30 s of grace; here the holder commits within it."""
    batch_id = await create(client, await upload(client, lines(8)))
    fleet = Fleet(plane.services)
    await fleet.until(client, batch_id, "in_progress")
    chunk = (await fleet.chunks(batch_id))[0]
    async with plane.services.database.transaction() as session:
        await session.execute(
            update(Chunk)
            .where(Chunk.id == chunk.id)
            .values(state="leased", nonce="n", attempt=1, lease_until=2e10)
        )
    await client.batches.cancel(batch_id)
    await asyncio.sleep(0.3)
    assert (await client.batches.retrieve(batch_id)).status == "cancelling"
    await fleet.commit(chunk)
    batch = await fleet.until(client, batch_id, "cancelled")
    assert batch.request_counts is not None
    assert batch.request_counts.completed == 4


@pytest.mark.parametrize("committed_chunks", [0, 1])
async def test_an_expired_batch_keeps_what_is_committed(
    plane: Plane, client: openai.AsyncOpenAI, committed_chunks: int
) -> None:
    """§8.6; an expired batch without any output has no output file."""
    batch_id = await create(client, await upload(client, lines(8)))
    fleet = Fleet(plane.services)
    await fleet.until(client, batch_id, "in_progress")
    await fleet.finish(batch_id, chunks=committed_chunks)
    async with plane.services.database.transaction() as session:
        await session.execute(update(Batch).values(expires_at=Batch.created_at))
    batch = await fleet.until(client, batch_id, "expired")
    assert batch.expired_at is not None
    assert batch.error_file_id is not None
    rest = (await client.files.content(batch.error_file_id)).text
    assert {json.loads(text)["error"]["code"] for text in rest.splitlines()} == {"batch_expired"}
    assert len(rest.splitlines()) == 8 - 4 * committed_chunks
    assert (batch.output_file_id is not None) == bool(committed_chunks)


async def test_an_all_failed_batch_has_no_output_file(
    plane: Plane, client: openai.AsyncOpenAI
) -> None:
    """§8.6: empty files are not made."""
    batch_id = await create(client, await upload(client, lines(4)))
    fleet = Fleet(plane.services)
    await fleet.until(client, batch_id, "in_progress")
    await fleet.finish(batch_id, fails=range(1, 5))
    batch = await fleet.until(client, batch_id, "completed")
    assert batch.output_file_id is None
    assert batch.error_file_id is not None


async def test_output_files_end_when_asked(plane: Plane, client: openai.AsyncOpenAI) -> None:
    file_id = await upload(client, lines(1))
    fleet = Fleet(plane.services)
    for seconds, expected in ((7200, 7200), (None, 30 * 86_400)):
        batch = await client.batches.create(
            input_file_id=file_id,
            endpoint=ENDPOINT,
            completion_window="24h",
            output_expires_after={"anchor": "created_at", "seconds": seconds}
            if seconds
            else openai.omit,
        )
        await fleet.until(client, batch.id, "in_progress")
        await fleet.finish(batch.id)
        done = await fleet.until(client, batch.id, "completed")
        assert done.output_file_id is not None
        file = await client.files.retrieve(done.output_file_id)
        assert file.purpose == "batch_output"
        assert file.expires_at == pytest.approx(file.created_at + expected, abs=1)


# --- tenancy and quotas ------------------------------------------------------------------------


async def test_another_tenants_batch_is_not_found(plane: Plane, client: openai.AsyncOpenAI) -> None:
    """§8, Tenancy."""
    batch_id = await create(client, await upload(client, lines(1)))
    async with plane.client(await plane.tenant_key("other")) as stranger:
        assert (await stranger.get("/v1/batches")).json()["data"] == []
        for method, path in (
            ("GET", f"/v1/batches/{batch_id}"),
            ("POST", f"/v1/batches/{batch_id}/cancel"),
            ("GET", f"/v1/batches?after={batch_id}"),
        ):
            assert (await stranger.request(method, path)).status_code == 404, path
    assert (await client.batches.retrieve(batch_id)).status != "cancelled"


async def test_the_quota_of_unfinished_batches(plane: Plane) -> None:
    key = await plane.tenant_key("small", max_batches=1)
    async with openai.AsyncOpenAI(base_url=f"{plane.url}/v1", api_key=key, max_retries=0) as client:
        file_id = await upload(client, lines(1))
        first = await create(client, file_id)
        with pytest.raises(openai.RateLimitError, match="have not ended yet"):
            await create(client, file_id)
        await client.batches.cancel(first)
        await Fleet(plane.services).until(client, first, "cancelled")
        await create(client, file_id)


async def test_the_quota_of_queued_tokens_is_taken_and_released(plane: Plane) -> None:
    """§8.9: token quota at validation; §8.6: released with the terminal state."""
    key = await plane.tenant_key("small", max_queued_tokens=100)
    fleet = Fleet(plane.services)
    async with openai.AsyncOpenAI(base_url=f"{plane.url}/v1", api_key=key) as client:
        file_id = await upload(client, lines(8))  # about 8 tokens a line
        first = await create(client, file_id)
        await fleet.until(client, first, "in_progress")
        second = await create(client, file_id)
        refused = await fleet.until(client, second, "failed")
        assert refused.errors is not None
        assert refused.errors.data is not None
        assert [error.code for error in refused.errors.data] == ["token_limit_exceeded"]
        await fleet.finish(first)
        await fleet.until(client, first, "completed")
        third = await create(client, file_id)
        await fleet.until(client, third, "in_progress")


async def test_probes_and_metrics(plane: Plane) -> None:
    async with plane.client(None) as client:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await client.get(path)).status_code == 200


async def test_a_create_wakes_the_worker(tmp_path: Path) -> None:
    """§8.13: a hint changes latency only; with a long poll it is what makes it start."""
    async with running(make_settings(tmp_path, poll_s=60)) as plane:
        key = await plane.tenant_key("acme")
        async with openai.AsyncOpenAI(base_url=f"{plane.url}/v1", api_key=key) as client:
            batch_id = await create(client, await upload(client, lines(1)))
            async with asyncio.timeout(55):  # less than the poll: only the hint is that early
                batch = await Fleet(plane.services).until(client, batch_id, "in_progress")
            assert batch.request_counts is not None


def _status(plane: Plane, batch_id: str, status: str) -> Callable[[], Any]:
    async def holds() -> bool:
        async with plane.services.database.read() as session:
            statement = select(Batch.status).where(Batch.id == batch_id)
            return (await session.execute(statement)).scalar_one() == status

    return holds


async def test_a_batch_cancelled_while_validating_has_no_files(
    plane: Plane, client: openai.AsyncOpenAI
) -> None:
    batch_id = await create(client, await upload(client, lines(20_000)))
    cancelled = await client.batches.cancel(batch_id)
    assert cancelled.status == "cancelling"
    await eventually(_status(plane, batch_id, "cancelled"))
    batch = await client.batches.retrieve(batch_id)
    if batch.in_progress_at is None:  # else validation was faster, and all lines are error lines
        assert (batch.output_file_id, batch.error_file_id) == (None, None)
        assert batch.request_counts is not None
        assert batch.request_counts.total == 0
