"""The end of a batch: resumable, fenced, every line once (design.md §8.2, §8.6)."""

from __future__ import annotations

import asyncio
import errno
import json

import pytest
from sqlalchemy import select, update

from tests.controlplane.endings import (
    ALL,
    LINES,
    batch_of,
    custom_ids,
    file_ids,
    free_lease,
    opened,
    outputs,
    ready,
    replica_of,
)
from tests.controlplane.fleet import USAGE, Fleet
from weir_controlplane.batches import winding_up
from weir_controlplane.batches.worker import work_once
from weir_controlplane.errors import StorageFullError
from weir_controlplane.files.service import sweep
from weir_controlplane.files.storage import Storage
from weir_controlplane.files.storage_writer import StorageWriter
from weir_controlplane.services import Services
from weir_controlplane.store.line_index import unpack_lines
from weir_controlplane.store.models import Chunk, File, Suspect, Tenant


async def test_chunks_hold_every_line_once_with_its_place(services: Services) -> None:
    await opened(services)
    chunks = await Fleet(services).chunks("b")
    assert sum(chunk.lines for chunk in chunks) == LINES
    assert len({chunk.prefix_group for chunk in chunks}) == 5
    assert (await batch_of(services)).queued_tokens == sum(chunk.tokens for chunk in chunks)


async def test_a_finalized_batch_adds_up(services: Services) -> None:
    await ready(services, fails=(3, 4))
    assert await work_once(services)
    batch = await batch_of(services)
    assert batch.status == "completed"
    assert (batch.completed_lines, batch.failed_lines) == (LINES - 2, 2)
    assert batch.output_tokens == USAGE["output_tokens"] * (LINES - 2)
    assert batch.cached_tokens == USAGE["cached_tokens"] * (LINES - 2)
    assert batch.queued_tokens == 0
    assert await custom_ids(services) == ALL
    assert not await work_once(services)


async def test_a_crash_before_the_last_transaction_is_repeated_whole(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.6: both files were written, then the process died."""
    await ready(services)

    async def die(*_arguments: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(winding_up, "_end", die)
        with pytest.raises(asyncio.CancelledError):
            await work_once(services)
    batch = await batch_of(services)
    assert batch.status == "finalizing"
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    await free_lease(services)
    assert await work_once(replica_of(services))
    assert await custom_ids(services) == ALL
    assert len(outputs(services)) == 2


@pytest.mark.parametrize("written", [0, 1, 30, LINES])
async def test_a_crash_while_writing_leaves_no_half_file(
    services: Services, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """§8.6, §8.8."""
    await ready(services)
    count = 0
    append = StorageWriter.append

    def failing(self: StorageWriter, data: bytes) -> None:
        nonlocal count
        if count == written:
            raise StorageFullError("the file store is full")
        count += 1
        append(self, data)

    with monkeypatch.context() as patched:
        patched.setattr(StorageWriter, "append", failing)
        assert await work_once(services)
    if written < LINES:
        batch = await batch_of(services)
        assert batch.status == "finalizing"
        assert "full" in (batch.work_error or "")  # a clear state, kept for the operator
        assert outputs(services) == []
        assert not await work_once(services)  # it waits before it tries again
        await free_lease(services)
        assert await work_once(services)
    assert (await batch_of(services)).status == "completed"
    assert await custom_ids(services) == ALL


@pytest.mark.parametrize("away", [False, True], ids=["full", "away"])
async def test_ends_that_fail_leave_no_rows(
    services: Services, monkeypatch: pytest.MonkeyPatch, *, away: bool
) -> None:
    """A batch whose end fails is tried again each minute, for as long as the store fails."""
    await ready(services)
    before = await file_ids(services)

    def failing(*_: object) -> None:
        raise OSError(errno.EIO if away else errno.ENOSPC, "no")

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "_create", failing)
        if away:
            patched.setattr(Storage, "_remove", failing)
        for _ in range(3):
            await free_lease(services)
            assert await work_once(services)
    await sweep(services)
    assert await file_ids(services) == before
    await free_lease(services)
    assert await work_once(services)
    assert await custom_ids(services) == ALL


async def test_files_that_were_taken_for_abandoned_are_written_again(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.6: the store was so slow that the sweeper came before the last transaction."""
    await ready(services)
    end = winding_up._end

    async def late(*arguments: object) -> None:
        async with services.database.transaction() as session:
            old = update(File).where(File.status == "uploading").values(created_at=1.0)
            await session.execute(old)
        await sweep(services)
        await end(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(winding_up, "_end", late)
        assert await work_once(services)
    await free_lease(services)
    await work_once(services)
    assert (await batch_of(services)).status == "completed"
    assert await custom_ids(services) == ALL


async def test_an_end_whose_answer_is_lost_keeps_its_files(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.6: the transaction was committed, and whoever asked for it never heard of it."""
    await ready(services)
    end = winding_up._end

    async def lose(*arguments: object) -> None:
        await end(*arguments)  # type: ignore[arg-type]
        raise ConnectionError("lost")

    with monkeypatch.context() as patched:
        patched.setattr(winding_up, "_end", lose)
        assert await work_once(services)
    assert (await batch_of(services)).status == "completed"
    assert await custom_ids(services) == ALL
    assert not await work_once(services)


async def test_a_poisonous_line_fails_with_its_own_error(services: Services) -> None:
    """§8.5: the line is in the error file; every other line completes."""
    await opened(services)
    fleet = Fleet(services)
    chunks = await fleet.chunks("b")
    for chunk in chunks[1:]:
        await fleet.commit(chunk)
    poison = unpack_lines(chunks[0].line_index)
    async with services.database.transaction() as session:
        (await session.get_one(Chunk, chunks[0].id)).state = "closed"
        session.add_all(
            Suspect(
                batch_id="b", line=item.line, state="failed", deaths=2, solo_deaths=2,
                updated_at=1.0, error={"code": "engine_crashed", "message": "It died twice."},
            )
            for item in poison
        )  # fmt: skip
    assert await work_once(services)
    batch = await batch_of(services)
    assert (batch.status, batch.failed_lines) == ("completed", len(poison))
    assert await custom_ids(services) == ALL
    async with services.database.read() as session:
        errors = await session.get_one(File, batch.error_file_id)
    content = await services.storage.read(errors.storage_key, 0, 1 << 20)
    assert {json.loads(line)["error"]["code"] for line in content.splitlines()} == {
        "engine_crashed"
    }


async def test_broken_results_are_never_published(services: Services) -> None:
    """Two chunks that both answer a line: the batch stops with the numbers, nothing is written."""
    await opened(services)
    fleet = Fleet(services)
    chunks = await fleet.chunks("b")
    for chunk in chunks[1:]:
        await fleet.commit(chunk)
    result: dict[str, object] = {
        "request_id": "r",
        "response": {"status_code": 200, "request_id": "r", "body": {}},
        "error": None,
        "usage": USAGE,
    }
    wrong: list[dict[str, object]] = [
        {"line": LINES + line, **result} for line in range(chunks[0].lines)
    ]
    await fleet.store(chunks[0], wrong)
    assert await work_once(services)
    batch = await batch_of(services)
    assert batch.status == "finalizing"
    assert "BrokenResultError" in (batch.work_error or "")
    assert outputs(services) == []


async def test_files_of_a_crashed_attempt_are_swept(services: Services) -> None:
    async with services.database.transaction() as session:
        session.add(Tenant(id="x", name="x", created_at=1.0))
        await session.flush()
        session.add(
            File(
                id="old", tenant_id="x", filename="", purpose="batch_output", size_bytes=0,
                status="uploading", storage_key="outputs/b/old-output", created_at=1.0,
            )
        )  # fmt: skip
    async with services.storage.writer("outputs/b/old-output") as writer:
        await writer.write(b"half")
    await sweep(services)
    assert outputs(services) == []
    async with services.database.read() as session:
        assert (await session.execute(select(File.id))).all() == []  # no list ever showed it
