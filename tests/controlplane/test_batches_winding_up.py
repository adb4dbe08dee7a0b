"""The end of a batch: resumable, fenced, every line once (design.md §8.2, §8.6)."""

from __future__ import annotations

import asyncio
import errno
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from tests.controlplane.bench import put_batch, put_submitted
from tests.controlplane.fleet import USAGE, Fleet
from tests.controlplane.support import eventually, make_settings
from tests.controlplane.test_dispatch_deaths import waiting
from weir_controlplane.app import make_services
from weir_controlplane.batches import winding_up
from weir_controlplane.batches.leases import (
    GRACE_S,
    apply_due,
    claim,
    hold,
    renew,
)
from weir_controlplane.batches.leftovers import (
    KEEP_S,
    forget_chunks,
    release,
    release_forever,
)
from weir_controlplane.batches.worker import work_forever, work_once
from weir_controlplane.dispatch import restructure
from weir_controlplane.dispatch.commits import Commit, commit, sweepable
from weir_controlplane.dispatch.sweep import sweep_uploads
from weir_controlplane.dispatch.watch import close_ending, expire_leases
from weir_controlplane.errors import StorageFullError
from weir_controlplane.files.service import sweep
from weir_controlplane.files.storage import Storage
from weir_controlplane.files.storage_writer import StorageWriter
from weir_controlplane.leases import LeaseLostError, void_leases
from weir_controlplane.services import Services
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.line_index import unpack_lines
from weir_controlplane.store.models import Batch, Chunk, File, Suspect, Tenant, Upload

LINES = 60


@pytest.fixture
async def services(tmp_path: Path, database_url: str) -> AsyncIterator[Services]:
    settings = make_settings(tmp_path, database_url, chunk_lines=7, abandoned_upload_s=60)
    services = make_services(settings)
    await services.database.open()
    yield services
    await services.database.close()


def replica_of(services: Services) -> Services:
    """Another worker on the same database and files."""
    made = make_services(services.settings)
    return Services(**{**vars(made), "database": services.database, "replica": f"{made.replica}-2"})


async def ready(services: Services, *, fails: tuple[int, ...] = (3,)) -> str:
    """A batch whose every line is committed, about to be finalized."""
    batch_id = await opened(services)
    await Fleet(services).finish(batch_id, fails=fails)
    return batch_id


async def opened(services: Services) -> str:
    """A batch in progress."""
    content = b"".join(
        json.dumps(
            {
                "custom_id": f"c{n}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {"model": "tiny", "prompt": f"{n % 5}" * 700 + str(n), "max_tokens": 4},
            }
        ).encode()
        + b"\n"
        for n in range(1, LINES + 1)
    )
    async with services.storage.writer("files/in") as writer:
        await writer.write(content)
    batch_id = await put_submitted(services.database, content=content)
    assert await work_once(services)
    return batch_id


async def batch_of(services: Services) -> Batch:
    async with services.database.read() as session:
        return await session.get_one(Batch, "b")


async def custom_ids(services: Services) -> Counter[str]:
    """How often each custom_id occurs in the output and error files together."""
    batch = await batch_of(services)
    found: Counter[str] = Counter()
    for file_id in (batch.output_file_id, batch.error_file_id):
        if file_id is not None:
            async with services.database.read() as session:
                file = await session.get_one(File, file_id)
            assert file.status == "processed"
            content = await services.storage.read(file.storage_key, 0, 1 << 30)
            assert len(content) == file.size_bytes
            found.update(json.loads(line)["custom_id"] for line in content.splitlines())
    return found


ALL = Counter(f"c{n}" for n in range(1, LINES + 1))


async def file_ids(services: Services) -> set[str]:
    async with services.database.read() as session:
        return set((await session.execute(select(File.id))).scalars())


def outputs(services: Services) -> list[str]:
    folder = services.settings.data_dir / "files" / "outputs"
    return [str(path) for path in folder.rglob("*") if path.is_file()]


async def free_lease(services: Services) -> None:
    """Lets the lease run out, as time would."""
    async with services.database.transaction() as session:
        await session.execute(update(Batch).values(work_lease_until=0.0))


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


async def test_chunk_results_are_given_up_long_after_the_files_are_there(
    services: Services,
) -> None:
    await ready(services)
    assert await work_once(services)
    assert await release(services) == 0  # a commit that is repeated now is still accepted
    async with services.database.transaction() as session:
        await session.execute(update(Batch).values(completed_at=Batch.completed_at - KEEP_S - 1))
        await session.execute(update(Upload).values(created_at=1.0))
    assert await release(services) == 1
    assert await release(services) == 0
    async with services.database.transaction() as session:
        keys = [row.storage_key for row in await sweepable(session, stale_after_s=60, limit=100)]
    assert sorted(keys) == await services.storage.keys("results")
    assert await custom_ids(services) == ALL


async def test_chunks_go_with_the_last_of_their_results(services: Services) -> None:
    """Their indexes grow with every line ever run; batch and files stay."""
    await ready(services)
    assert await work_once(services)
    async with services.database.transaction() as session:
        await session.execute(update(Batch).values(completed_at=Batch.completed_at - KEEP_S - 1))
        await session.execute(update(Upload).values(created_at=1.0))
        session.add(Suspect(batch_id="b", line=1, state="cleared", updated_at=1.0))
    assert await forget_chunks(services) == 0
    (held, *_) = await Fleet(services).chunks("b")
    assert await release(services) == 1
    assert await forget_chunks(services) == 0  # the sweeper needs them to find their results
    assert await sweep_uploads(services.database, services.storage, stale_after_s=60)
    assert await forget_chunks(services) == 1
    assert await Fleet(services).chunks("b") == []
    async with services.database.read() as session:
        assert (await session.execute(select(Suspect.line))).all() == []
    late = Commit(
        chunk_id=held.id, attempt=1, nonce="n", upload_id="u", ranges=((1, 1),), final=True
    )
    assert (await commit(services.database, late)).state == "gone"
    assert await custom_ids(services) == ALL
    assert (await batch_of(services)).total_lines == LINES


async def test_leftovers_go_as_fast_as_batches_end(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the pause between two looks is."""
    monkeypatch.setattr("weir_controlplane.batches.leftovers._BATCHES", 2)
    for _ in range(5):
        await put_batch(services.database, lines=4)
    async with services.database.transaction() as session:
        await session.execute(update(Batch).values(status="completed", completed_at=1.0))

    async def are_gone() -> bool:
        async with services.database.read() as session:
            return (await session.execute(select(func.count(Chunk.id)))).scalar_one() == 0

    seldom = services.settings.model_copy(update={"sweep_s": 3600})
    looking = asyncio.create_task(release_forever(replace(services, settings=seldom)))
    try:
        await eventually(are_gone, within_s=20)
    finally:
        looking.cancel()


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


async def test_whoever_lost_its_lease_writes_nothing(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.2: a stalled replica comes back after another has finished the batch."""
    await ready(services)
    stalled, go_on = asyncio.Event(), asyncio.Event()
    end = winding_up._end

    async def stall(*arguments: object) -> None:
        stalled.set()
        await go_on.wait()
        await end(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(winding_up, "_end", stall)
        slow = asyncio.create_task(work_once(services))
        await stalled.wait()
    await free_lease(services)
    assert await work_once(replica_of(services))
    done = await batch_of(services)
    go_on.set()
    assert await slow
    after = await batch_of(services)
    assert (after.status, after.output_file_id) == ("completed", done.output_file_id)
    assert await custom_ids(services) == ALL
    assert len(outputs(services)) == 2  # the late one's files are gone again


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


async def test_a_lease_is_held_by_one_and_renewed_by_its_holder_only(
    services: Services,
) -> None:
    """§8.2."""
    await ready(services)
    await apply_due(services)
    work = await claim(services)
    assert work is not None
    assert await claim(replica_of(services)) is None
    await renew(services, work)
    await free_lease(services)
    taken = await claim(replica_of(services))
    assert taken is not None
    with pytest.raises(LeaseLostError):
        await renew(services, work)
    with pytest.raises(LeaseLostError):
        async with services.database.transaction() as session:
            await hold(session, work)
    await renew(replica_of(services), taken)


@pytest.mark.parametrize("ahead_s", [600.0, 86_400.0])
async def test_a_clock_that_was_ahead_keeps_no_batch_waiting(
    services: Services, ahead_s: float
) -> None:
    """§8.1: its holder died before the database's clock was set right."""
    await ready(services)
    await apply_due(services)
    assert await claim(services) is not None
    assert await claim(services) is None
    async with services.database.transaction() as session:
        ahead = update(Batch).values(work_lease_until=Batch.work_lease_until + ahead_s)
        await session.execute(ahead)
    assert await claim(services) is not None


async def test_batches_of_one_tenant_leave_workers_to_others(services: Services) -> None:
    """Long inputs are checked one after another while another tenant has any, too."""
    names = [await put_batch(services.database, lines=4) for _ in range(4)]
    async with services.database.transaction() as session:
        busy = (await session.get_one(Batch, names[0])).tenant_id
        for place, name in enumerate(names):
            row = await session.get_one(Batch, name)
            row.status, row.in_progress_at, row.created_at = "validating", None, float(place)
            row.tenant_id = row.tenant_id if place == 3 else busy
    claimed = [await claim(services) for _ in names]
    assert [work and work.batch_id for work in claimed] == [names[at] for at in (0, 3, 1, 2)]


async def test_replicas_at_once_finish_a_batch_once(services: Services) -> None:
    await ready(services)
    replicas = [services, replica_of(services), replica_of(services)]
    tasks = [asyncio.create_task(work_forever(replica)) for replica in replicas]

    async def completed() -> bool:
        return (await batch_of(services)).status == "completed"

    await eventually(completed)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await custom_ids(services) == ALL
    assert len(outputs(services)) == 2


async def test_shutdown_gives_the_lease_back(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ready(services)
    begun = asyncio.Event()

    async def endless(*_arguments: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(winding_up, "_prepare", endless)
        task = asyncio.create_task(work_once(services))
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert await work_once(replica_of(services))  # at once, not after the lease's length
    assert await custom_ids(services) == ALL


async def test_an_embedded_restart_takes_work_up_at_once(
    services: Services, database_url: str
) -> None:
    """§8.9: its process lock proves that whoever held the lease is gone."""
    await ready(services)
    await apply_due(services)
    assert await claim(services) is not None  # and then the process is killed
    await void_leases(Batch)(services)
    embedded = database_url.startswith("sqlite")
    assert (await claim(services) is not None) == embedded


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


async def error_codes(services: Services) -> dict[str, str | None]:
    """The code of each line of the error file, by custom_id."""
    batch = await batch_of(services)
    async with services.database.read() as session:
        file = await session.get_one(File, batch.error_file_id)
    lines = (await services.storage.read(file.storage_key, 0, 1 << 20)).splitlines()
    return {item["custom_id"]: item["error"]["code"] for item in map(json.loads, lines)}


async def lease_first(services: Services) -> Chunk:
    """A chunk of the batch that an agent holds."""
    chunk = (await Fleet(services).chunks("b"))[0]
    async with services.database.transaction() as session:
        await session.execute(
            update(Chunk)
            .where(Chunk.id == chunk.id)
            .values(state="leased", nonce="n", lease_until=db_now() + 90)
        )
    return chunk


async def end_window(services: Services, *, ago_s: float) -> None:
    async with services.database.transaction() as session:
        await session.execute(update(Batch).values(expires_at=db_now() - ago_s))


@pytest.mark.parametrize("held", [False, True], ids=["all-open", "one-leased"])
async def test_a_batch_out_of_time_expires_whoever_looks_first(
    services: Services, *, held: bool
) -> None:
    """§8.6: who watches the chunks may see the end of the window before who marks the batch."""
    await opened(services)
    chunk = await lease_first(services) if held else None
    await end_window(services, ago_s=1)
    await close_ending(services.database)
    if chunk is not None:  # its holder commits all that it has
        await Fleet(services).commit(chunk)
    while await work_once(services):
        await close_ending(services.database)
    batch = await batch_of(services)
    answered = 0 if chunk is None else chunk.lines
    assert (batch.status, batch.completed_lines) == ("expired", answered)
    assert await custom_ids(services) == ALL
    codes = await error_codes(services)
    assert len(codes) == LINES - answered
    assert set(codes.values()) == {"batch_expired"}


async def test_the_holder_of_an_expired_batchs_chunk_has_its_grace(services: Services) -> None:
    """§8.4: what is open is closed at once, what is leased 30 s after the window's end."""
    await opened(services)
    chunk = await lease_first(services)
    await end_window(services, ago_s=GRACE_S - 20)
    assert not await work_once(services)  # it waits for the holder
    await close_ending(services.database)
    states = {item.id: item.state for item in await Fleet(services).chunks("b")}
    assert states.pop(chunk.id) == "leased"
    assert set(states.values()) == {"closed"}
    await end_window(services, ago_s=GRACE_S + 1)
    assert await close_ending(services.database) == ["b"]
    assert await work_once(services)
    assert (await batch_of(services)).status == "expired"
    assert set((await error_codes(services)).values()) == {"batch_expired"}


async def test_a_lease_of_suspects_runs_out_while_its_batch_ends(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.9: one holds the chunk and adds to its batch, the other the batch and closes them."""
    await opened(services)
    chunk = await lease_first(services)
    line = unpack_lines(chunk.line_index)[0].line
    async with services.database.transaction() as session:
        await session.execute(update(Chunk).values(lease_until=1.0))
        session.add(Suspect(batch_id="b", line=line, state="suspect", deaths=1, updated_at=1.0))
    await end_window(services, ago_s=GRACE_S + 1)
    cutting = asyncio.Event()
    marked_lines = restructure.marked_lines

    async def slowly(*arguments: object) -> object:
        cutting.set()
        await waiting(services.database, 1)
        return await marked_lines(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(restructure, "marked_lines", slowly)
    async with asyncio.timeout(60):
        expiring = asyncio.create_task(expire_leases(services.database))
        await cutting.wait()
        assert await work_once(services)
        assert await expiring == 1
    assert (await batch_of(services)).status == "expired"
    assert await custom_ids(services) == ALL


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
