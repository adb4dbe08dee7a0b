"""A file store that has lost objects of a batch: the batch ends (design.md §8.6)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from sqlalchemy import delete, select, update

from tests.controlplane.bench import put_submitted
from tests.controlplane.fleet import Fleet
from tests.controlplane.jobs import Lab
from tests.controlplane.support import batch_reaches, make_settings
from weir_controlplane.app import make_services
from weir_controlplane.batches import winding_up
from weir_controlplane.batches.leases import apply_due, cancel_batch
from weir_controlplane.batches.losses import BELIEVED_AFTER_S, BELIEVED_TIMES
from weir_controlplane.batches.worker import work_once
from weir_controlplane.dispatch.lines import fetch_lines
from weir_controlplane.dispatch.watch import close_ending
from weir_controlplane.errors import MissingObjectError, StorageError
from weir_controlplane.files.storage import Storage
from weir_controlplane.services import Services
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.models import Batch, Chunk, ChunkResult, File

LINES = 12
INPUT = b"".join(
    json.dumps(
        {
            "custom_id": f"c{n}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "tiny", "prompt": f"say {n}", "max_tokens": 4},
        }
    ).encode()
    + b"\n"
    for n in range(1, LINES + 1)
)


@pytest.fixture
async def services(tmp_path: Path, database_url: str) -> AsyncIterator[Services]:
    """A batch of four chunks, running, and another file of the same store."""
    services = make_services(make_settings(tmp_path, database_url, chunk_lines=3))
    await services.database.open()
    for name in ("in", "other"):
        await put(services, f"files/{name}")
    await put_submitted(services.database, content=INPUT, others=("other",))
    yield services
    await services.database.close()


async def put(services: Services, key: str) -> None:
    async with services.storage.writer(key) as writer:
        await writer.write(INPUT)


async def batch_of(services: Services) -> Batch:
    async with services.database.read() as session:
        return await session.get_one(Batch, "b")


async def alter(services: Services, **values: object) -> None:
    """Writes columns of the batch; without any, only lets its lease run out, as time would."""
    async with services.database.transaction() as session:
        await session.execute(update(Batch).values(work_lease_until=0.0, **values))


async def attempt(services: Services, times: int = 1) -> None:
    """As many attempts, each after the pause that follows a failure."""
    for _ in range(times):
        assert await work_once(services)
        await alter(services)


async def insist(services: Services) -> None:
    """Attempts until the loss is believed: one too few, then the last of them half an hour on."""
    await attempt(services, BELIEVED_TIMES)
    before = await batch_of(services)
    assert before.status != "failed"
    assert before.work_error is not None
    assert before.missing_since is not None
    await alter(services, missing_since=before.missing_since - BELIEVED_AFTER_S)
    await attempt(services)


async def test_a_loss_that_a_clock_ahead_found_is_believed_as_soon_as_any(
    services: Services,
) -> None:
    """§8.1: the batch was in progress for as much longer as the clock had been ahead."""
    await services.storage.delete("files/in")
    await attempt(services)
    await alter(services, missing_since=(await batch_of(services)).created_at + 9e9)
    await attempt(services)
    async with services.database.read() as session:
        now_s = await clock_s(session)
    found = (await batch_of(services)).missing_since
    assert found is not None
    assert found <= now_s


async def validating(services: Services) -> None:
    """It is new."""


async def in_progress(services: Services) -> None:
    """Two of its chunks are committed, and one is with an agent."""
    await attempt(services)
    await Fleet(services).finish("b", chunks=2)
    chunk = next(item for item in await Fleet(services).chunks("b") if item.state == "open")
    async with services.database.transaction() as session:
        row = await session.get_one(Chunk, chunk.id)
        row.state, row.attempt, row.nonce = "leased", 1, "n"
        row.lease_until = await clock_s(session) + 90


async def finalizing(services: Services) -> None:
    """Every line is committed."""
    await attempt(services)
    await Fleet(services).finish("b")


async def cancelling(services: Services) -> None:
    """Cancelled half-way; its agents have had the time to hand back."""
    await in_progress(services)
    async with services.database.transaction() as session:
        batch = await session.get_one(Batch, "b")
        cancel_batch(batch, await clock_s(session))
        batch.cancelling_at = 2.0
    assert await close_ending(services.database) == ["b"]


async def expiring(services: Services) -> None:
    """Half done when its window ended; its agents have had the time to hand back."""
    await in_progress(services)
    await alter(services, expires_at=2.0)
    await apply_due(services)
    assert await close_ending(services.database) == ["b"]


async def fetch(services: Services) -> bytes:
    """Reads the lines of the leased chunk, as its holder does."""
    chunk = next(item for item in await Fleet(services).chunks("b") if item.state == "leased")
    return await fetch_lines(
        services.database, services.storage,
        chunk_id=chunk.id, attempt=chunk.attempt, nonce="n", after=0, limit=100,
    )  # fmt: skip


async def gone(services: Services, key: str) -> None:
    """The object is deleted."""
    await services.storage.delete(key)


async def cut(services: Services, key: str) -> None:
    """The object ends amid a line."""
    content = await services.storage.read(key, 0, 100)
    async with services.storage.writer(key) as writer:
        await writer.write(content)


async def emptied(services: Services, key: str) -> None:
    """The object is there and has nothing."""
    async with services.storage.writer(key):
        pass


async def altered(services: Services, key: str) -> None:
    """As long as it was, and as valid: the same letter of each line is another one."""
    content = await services.storage.read(key, 0, 1 << 20)
    async with services.storage.writer(key) as writer:
        await writer.write(content.replace(b"tokens", b"tokenz"))


async def garbled(services: Services, key: str) -> None:
    """As long as it was, and no JSON."""
    content = await services.storage.read(key, 0, 1 << 20)
    async with services.storage.writer(key) as writer:
        await writer.write(content.replace(b"{", b"<"))


async def joined(services: Services, key: str) -> None:
    """One line that is longer than any can be."""
    size_bytes = len(await services.storage.read(key, 0, 1 << 20))
    async with services.storage.writer(key) as writer:
        await writer.write(b"x" * size_bytes)


Harm = Callable[[Services, str], Awaitable[None]]


STAGES = pytest.mark.parametrize(
    "reach", [validating, in_progress, finalizing, cancelling, expiring]
)
Reach = Callable[[Services], Awaitable[None]]


@STAGES
@pytest.mark.parametrize("harm", [gone, cut, altered])
async def test_a_batch_whose_input_is_lost_fails_from_wherever_it_is(
    services: Services, reach: Reach, harm: Harm
) -> None:
    await reach(services)
    await harm(services, "files/in")
    if reach is in_progress:  # an agent is who finds out
        assert not await work_once(services)
        with pytest.raises(MissingObjectError):
            await fetch(services)
    await insist(services)
    batch = await batch_of(services)
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert batch.errors is not None
    (error,) = batch.errors
    assert (error["code"], error["param"]) == ("input_file_lost", "input_file_id")
    assert "altered the content of in, the input file; upload it again" in error["message"]
    assert batch.queued_tokens == 0
    assert (batch.completed_lines, batch.failed_lines) == (0, batch.total_lines)
    assert {chunk.state for chunk in await Fleet(services).chunks("b")} <= {"done", "closed"}
    assert not await work_once(services)


@pytest.mark.parametrize("reach", [finalizing, cancelling, expiring])
@pytest.mark.parametrize("harm", [garbled, joined])
async def test_an_input_that_cannot_be_read_any_more_is_lost(
    services: Services, monkeypatch: pytest.MonkeyPatch, reach: Reach, harm: Harm
) -> None:
    await reach(services)
    monkeypatch.setattr(winding_up, "MAX_LINE_BYTES", 256)
    await harm(services, "files/in")
    await insist(services)
    batch = await batch_of(services)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [error["code"] for error in batch.errors] == ["input_file_lost"]


@pytest.mark.parametrize("harm", [gone, cut, emptied, altered])
@pytest.mark.parametrize("reach", [finalizing, cancelling, expiring])
async def test_where_results_are_lost_the_others_are_given(
    services: Services, reach: Reach, harm: Harm
) -> None:
    await reach(services)
    harmed = await harm_a_result(services, harm)
    await insist(services)
    batch = await batch_of(services)
    assert batch.status == "failed"
    assert [item["code"] for item in batch.errors or ()] == ["results_lost"]
    assert batch.queued_tokens == 0
    committed = LINES if reach is finalizing else LINES // 2
    assert (batch.completed_lines, batch.failed_lines) == (committed - 3, LINES - committed + 3)
    given = await lines_of(services, batch.output_file_id)
    failed = await lines_of(services, batch.error_file_id)
    assert sorted(given | failed) == sorted(f"c{n}" for n in range(1, LINES + 1))
    assert all(error is None for error in given.values())
    lost = [custom_id for custom_id, error in failed.items() if error == "results_lost"]
    assert lost == [f"c{line}" for line in harmed]
    assert not await work_once(services)


async def test_a_content_error_that_its_owner_did_not_make_is_not_theirs(
    services: Services,
) -> None:
    async with services.storage.writer("files/in") as writer:
        await writer.write(INPUT.replace(b"POST", b"GET ", 1))
    await insist(services)
    assert [item["code"] for item in (await batch_of(services)).errors or ()] == ["input_file_lost"]


async def test_a_single_read_that_was_wrong_costs_a_lease_at_most(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    await in_progress(services)

    def wrong(_: Storage, _key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [b"x" * (end - start) for start, end in ranges]

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "_read_ranges", wrong)
        with pytest.raises(MissingObjectError, match=r"line \d+ of the input file was altered"):
            await fetch(services)
    await attempt(services)
    batch = await batch_of(services)
    assert (batch.status, batch.missing_since) == ("in_progress", None)
    assert await fetch(services)


async def test_what_an_earlier_release_took_in_goes_on_unchecked(services: Services) -> None:
    async with services.database.transaction() as session:
        await session.execute(update(File).values(sha256=None))
    await in_progress(services)
    await altered(services, "files/in")
    assert await fetch(services)
    await Fleet(services).finish("b")
    await Fleet(services).commit(
        next(chunk for chunk in await Fleet(services).chunks("b") if chunk.state == "leased")
    )
    await attempt(services)
    assert (await batch_of(services)).status == "completed"


async def lose_a_row(services: Services, first: ChunkResult, _second: ChunkResult) -> None:
    """The database has forgotten that a chunk has a result."""
    async with services.database.transaction() as session:
        await session.execute(delete(ChunkResult).where(ChunkResult.chunk_id == first.chunk_id))


async def double_lines(services: Services, first: ChunkResult, second: ChunkResult) -> None:
    """Two chunks say that they answer the same lines."""
    async with services.database.transaction() as session:
        await session.execute(
            update(ChunkResult)
            .where(ChunkResult.chunk_id == second.chunk_id)
            .values(ranges=first.ranges)
        )


@pytest.mark.parametrize(("harm", "doubtful"), [(lose_a_row, 3), (double_lines, 6)])
async def test_results_that_contradict_each_other_end_the_batch_with_the_others(
    services: Services,
    harm: Callable[[Services, ChunkResult, ChunkResult], Awaitable[None]],
    doubtful: int,
) -> None:
    await finalizing(services)
    async with services.database.read() as session:
        first, second, *_ = (await session.execute(select(ChunkResult))).scalars()
    await harm(services, first, second)
    await insist(services)
    batch = await batch_of(services)
    assert batch.status == "failed"
    assert [item["code"] for item in batch.errors or ()] == ["results_lost"]
    assert (batch.completed_lines, batch.failed_lines) == (LINES - doubtful, doubtful)
    given = await lines_of(services, batch.output_file_id)
    failed = await lines_of(services, batch.error_file_id)
    assert sorted(given | failed) == sorted(f"c{n}" for n in range(1, LINES + 1))
    assert set(failed.values()) == {"results_lost"}
    assert not await work_once(services)


async def harm_a_result(services: Services, harm: Harm) -> list[int]:
    """Harms the first committed result; its lines."""
    async with services.database.read() as session:
        row = await session.get_one(ChunkResult, (await Fleet(services).chunks("b"))[0].id)
    await harm(services, row.storage_key)
    return [line for first, last in row.ranges for line in range(first, last + 1)]


async def lines_of(services: Services, file_id: str | None) -> dict[str, str | None]:
    """The error code of each line of a file, by custom_id."""
    async with services.database.read() as session:
        file = await session.get_one(File, file_id)
    content = await services.storage.read(file.storage_key, 0, file.size_bytes)
    lines = [json.loads(line) for line in content.splitlines()]
    return {line["custom_id"]: (line["error"] or {}).get("code") for line in lines}


@STAGES
async def test_an_outage_fails_no_batch(
    services: Services, monkeypatch: pytest.MonkeyPatch, reach: Reach
) -> None:
    await reach(services)
    if reach is in_progress:
        await alter(services, missing_since=1.0)
    await services.storage.delete("files/in")

    def refuse(*_arguments: object) -> None:
        raise ConnectionRefusedError

    with monkeypatch.context() as patched:
        for name in ("_read_ranges", "_is_missing"):
            patched.setattr(Storage, name, refuse)
        await attempt(services, BELIEVED_TIMES + 2)
        batch = await batch_of(services)
        assert batch.failed_at is None
        assert "ConnectionRefusedError" in (batch.work_error or "")
        assert batch.missing_times == 0


async def test_an_outage_between_makes_the_count_begin_anew(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    await finalizing(services)
    await services.storage.delete("files/in")
    await attempt(services, BELIEVED_TIMES)
    await alter(services, missing_since=1.0)

    def refuse(*_arguments: object) -> None:
        raise TimeoutError

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "_read_ranges", refuse)
        await attempt(services)
    await attempt(services)
    batch = await batch_of(services)
    assert (batch.status, batch.missing_times) == ("finalizing", 1)
    assert (batch.missing_since or 0.0) > 1.0


async def test_an_input_that_comes_back_is_worked_on(services: Services) -> None:
    await in_progress(services)
    await services.storage.delete("files/in")
    with pytest.raises(StorageError):
        await fetch(services)
    await attempt(services, 3)
    assert (await batch_of(services)).status == "in_progress"
    await put(services, "files/in")
    await attempt(services)
    batch = await batch_of(services)
    assert (batch.status, batch.missing_since, batch.missing_times, batch.work_failures) == (
        "in_progress", None, 0, 0,
    )  # fmt: skip
    assert not await work_once(services)
    assert await fetch(services)
    assert "leased" in {chunk.state for chunk in await Fleet(services).chunks("b")}


async def test_a_store_that_has_none_of_its_files_is_not_believed(services: Services) -> None:
    """A folder that is not mounted answers, too."""
    await finalizing(services)
    for name in ("in", "other"):
        await services.storage.delete(f"files/{name}")
    await attempt(services)
    await alter(services, missing_since=1.0)
    await attempt(services, BELIEVED_TIMES)
    assert (await batch_of(services)).status == "finalizing"
    for name in ("in", "other"):
        await put(services, f"files/{name}")
    await attempt(services)
    assert (await batch_of(services)).status == "completed"


@pytest.mark.parametrize("harm", [gone, altered])
async def test_client_and_agent_are_told_of_a_lost_input(desk: Lab, harm: Harm) -> None:
    batch_id = await desk.submit(8)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    lease = next(iter(agent.held.values()))
    path = f"/internal/v1/chunks/{lease['chunk_id']}/lines"
    fence = {"attempt": lease["attempt"], "nonce": lease["nonce"]}
    services = desk.plane.services
    for key in await services.storage.keys("files"):
        await harm(services, key)
    unread = await desk.http.get(path, params=fence)
    assert (unread.status_code, unread.json()["error"]["code"]) == (503, "storage_unavailable")
    await alter(services, missing_since=1.0, missing_times=BELIEVED_TIMES)
    batch = await batch_reaches(desk.openai, batch_id, "failed")
    assert batch.errors is not None
    assert [item.code for item in batch.errors.data or ()] == ["input_file_lost"]
    assert batch.request_counts is not None
    assert batch.request_counts.failed == 8
    withdrawn = await desk.http.get(path, params=fence)
    assert (withdrawn.status_code, withdrawn.json()["error"]["code"]) == (409, "stale_lease")
    assert (await desk.openai.files.delete(batch.input_file_id)).deleted
