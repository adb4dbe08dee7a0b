"""What happens to leases and uploads by themselves, on both databases."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select, update

from tests.controlplane.bench import (
    Process,
    assert_nothing_lost_or_doubled,
    chunks_of,
    commit_lines,
    lines_of,
    put_batch,
    upload,
)
from tests.controlplane.test_dispatch_deaths import waiting
from weir_controlplane.dispatch import leases
from weir_controlplane.dispatch.bounds import LEASE_S, OUTAGE_AFTER_S
from weir_controlplane.dispatch.errors import StaleSequenceError
from weir_controlplane.dispatch.incarnations import identify
from weir_controlplane.dispatch.settle import settle
from weir_controlplane.dispatch.sweep import sweep_uploads
from weir_controlplane.dispatch.view import WorkView
from weir_controlplane.dispatch.watch import (
    close_ending,
    expire_leases,
    release_agent,
    renew_leases,
    revoke_halted,
    unpin,
)
from weir_controlplane.dispatch.work import Grant
from weir_controlplane.errors import InvalidRequestError
from weir_controlplane.eta.reading import read_work
from weir_controlplane.files.storage import Storage
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database, clock_s
from weir_controlplane.store.fleet_models import Incarnation
from weir_controlplane.store.models import Batch, Chunk, DispatchClock, Upload


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(f"file://{tmp_path / 'files'}")


async def lease_all(database: Database, batch_id: str, process: Process) -> list[Grant]:
    wanted = [chunk.id for chunk in await chunks_of(database, batch_id)]
    first = await settle(database, process.work())
    process.incarnation = first.incarnation
    return list((await settle(database, process.work(wanted=wanted))).grants)


async def states(database: Database, batch_id: str) -> list[str]:
    return [chunk.state for chunk in await chunks_of(database, batch_id)]


async def set_leases(database: Database, **values: object) -> None:
    async with database.transaction() as session:
        await session.execute(update(Chunk).where(Chunk.state == "leased").values(**values))


async def test_rule_1_after_an_outage_no_lease_expires_for_one_length(database: Database) -> None:
    """§8.1: nobody could renew while the database was away."""
    batch_id = await put_batch(database, lines=4)
    await expire_leases(database)  # somebody watches
    await lease_all(database, batch_id, Process(agent_id="pod"))
    async with database.transaction() as session:  # the outage: nobody watched for long
        gone = OUTAGE_AFTER_S + 100
        await session.execute(
            update(DispatchClock).values(watched_at=db_now() - gone, hold_until=db_now() - gone)
        )
    await set_leases(database, lease_until=db_now() - 50)
    assert await expire_leases(database) == 0
    assert await expire_leases(database) == 0  # nor at the next look
    assert await states(database, batch_id) == ["leased"]
    async with database.transaction() as session:  # one length later
        await session.execute(update(DispatchClock).values(hold_until=db_now() - 1))
    assert await expire_leases(database) == 1
    assert await states(database, batch_id) == ["open"]


async def test_rule_1_a_clock_that_was_ahead_keeps_no_lease(database: Database) -> None:
    """A database server's clock that is set right by a day: its leases do not last that day."""
    batch_id = await put_batch(database, lines=8)
    await lease_all(database, batch_id, Process(agent_id="pod"))
    await expire_leases(database)
    day_s = 86_400.0
    await set_leases(database, lease_until=Chunk.lease_until + day_s)
    async with database.transaction() as session:
        ahead = {"watched_at": db_now() + day_s, "hold_until": db_now() + day_s}
        await session.execute(update(DispatchClock).values(**ahead))
    assert await expire_leases(database) == 0
    await set_leases(database, lease_until=Chunk.lease_until - 2 * LEASE_S)  # as time goes by
    async with database.transaction() as session:
        later = DispatchClock.hold_until - LEASE_S
        await session.execute(update(DispatchClock).values(hold_until=later))
    assert await expire_leases(database) == 2
    assert await states(database, batch_id) == ["open", "open"]


async def test_rule_1_a_renewed_lease_does_not_expire(database: Database) -> None:
    """§8.1: a sync that lists the lease gives it a whole length."""
    batch_id = await put_batch(database, lines=4)
    process = Process(agent_id="pod")
    (grant,) = await lease_all(database, batch_id, process)
    await set_leases(database, lease_until=db_now() + 1)
    await settle(database, process.work(held=[grant]))
    (chunk,) = await chunks_of(database, batch_id)
    assert chunk.lease_until is not None
    assert chunk.lease_until > await database.now_s() + 80


async def test_rule_1_an_agent_known_to_be_gone_loses_its_leases_at_once(
    database: Database,
) -> None:
    """§8.1: a deleted pod's chunks are open again without waiting for the clock."""
    batch_id = await put_batch(database, lines=8)
    await lease_all(database, batch_id, Process(agent_id="pod"))
    assert await release_agent(database, "another") == 0
    assert await release_agent(database, "pod") == 2
    assert await states(database, batch_id) == ["open", "open"]


async def test_rule_4_ending_batches_close_open_chunks_now_and_leased_ones_after_the_grace(
    database: Database, storage: Storage
) -> None:
    """§8.4: 30 s of grace, then closed chunks take no commit (§8.6)."""
    batch_id = await put_batch(database, lines=12)
    process = Process(agent_id="pod")
    first = await settle(database, process.work())
    process.incarnation = first.incarnation
    chunks = await chunks_of(database, batch_id)
    wanted = [chunks[0].id, chunks[1].id]
    grants = (await settle(database, process.work(wanted=wanted))).grants
    await cancel(database, batch_id, ago_s=1)
    assert await close_ending(database) == []
    assert await states(database, batch_id) == ["leased", "leased", "closed"]
    number = await upload(database, storage, grants[0], [1, 2])
    done = await commit_lines(database, grants[0], number, [1, 2], final=False)
    assert (done.state, done.more) == ("accepted", False)
    await cancel(database, batch_id, ago_s=31)
    assert await close_ending(database) == [batch_id]
    assert sorted(await states(database, batch_id)) == ["closed", "closed", "closed", "done"]
    second = await upload_or_refusal(database, storage, grants[1])
    assert second == "stale_lease"
    late = await commit_lines(database, grants[1], "upload_x", [5], final=False)
    assert late.state == "gone"
    found = await assert_nothing_lost_or_doubled(database, batch_id, 12)
    assert set(found.committed) == {1, 2}


async def test_rule_4_the_grace_of_a_batch_that_ended_in_an_outage_counts_from_its_end(
    database: Database, storage: Storage
) -> None:
    """§8.4, §8.1: its holders could commit nothing while the database was away."""
    batch_id = await put_batch(database, lines=8)
    first, second = await lease_all(database, batch_id, Process(agent_id="pod"))
    await cancel(database, batch_id, ago_s=100)
    await away(database, back_ago_s=0)
    assert await close_ending(database) == []
    assert await states(database, batch_id) == ["leased", "leased"]
    number = await upload(database, storage, first, [1, 2, 3])
    done = await commit_lines(database, first, number, [1, 2, 3], final=False)
    assert done.state == "accepted"
    await away(database, back_ago_s=31)
    assert await close_ending(database) == [batch_id]
    assert await upload_or_refusal(database, storage, second) == "stale_lease"
    found = await assert_nothing_lost_or_doubled(database, batch_id, 8)
    assert set(found.committed) == {1, 2, 3}


async def test_rule_1_a_clock_that_was_ahead_lengthens_no_grace(database: Database) -> None:
    """A cancelled batch was open for as long, if its holder could commit nothing."""
    batch_id = await put_batch(database, lines=4)
    await lease_all(database, batch_id, Process(agent_id="pod"))
    await cancel(database, batch_id, ago_s=-86_400)
    assert await close_ending(database) == []
    async with database.transaction() as session:
        batch = await session.get_one(Batch, batch_id)
        assert batch.cancelling_at is not None
        assert batch.cancelling_at <= await clock_s(session)
        batch.cancelling_at -= 31
    assert await close_ending(database) == [batch_id]


async def away(database: Database, *, back_ago_s: float) -> None:
    """An outage that somebody noticed so long ago."""
    await expire_leases(database)  # somebody watches
    gone = OUTAGE_AFTER_S + 100
    async with database.transaction() as session:
        await session.execute(update(DispatchClock).values(watched_at=db_now() - gone))
    assert await expire_leases(database) == 0
    async with database.transaction() as session:
        earlier = DispatchClock.hold_until - back_ago_s
        await session.execute(update(DispatchClock).values(hold_until=earlier))


async def upload_or_refusal(database: Database, storage: Storage, grant: Grant) -> str | None:
    from weir_controlplane.dispatch.errors import StaleLeaseError

    with pytest.raises(StaleLeaseError) as refusal:
        await upload(database, storage, grant, [5])
    return refusal.value.code


async def cancel(database: Database, batch_id: str, *, ago_s: float) -> None:
    async with database.transaction() as session:
        await session.execute(
            update(Batch)
            .where(Batch.id == batch_id)
            .values(status="cancelling", closing_as="cancelled", cancelling_at=db_now() - ago_s)
        )


async def test_rule_2_the_sweeper_takes_only_what_no_commit_can(
    database: Database, storage: Storage
) -> None:
    """§8.2: an upload of a current lease stays; a marked one cannot be committed."""
    batch_id = await put_batch(database, lines=8)
    process = Process(agent_id="pod")
    kept, lost = await lease_all(database, batch_id, process)
    numbers = {
        grant.chunk_id: await upload(database, storage, grant, lines)
        for grant, lines in ((kept, [1, 2, 3, 4]), (lost, [5, 6, 7, 8]))
    }
    await settle(database, process.work(held=[kept], returned=[lost]))
    assert await sweep_uploads(database, storage) == 0  # too young
    await age_uploads(database)
    assert await sweep_uploads(database, storage) == 1
    async with database.read() as session:
        left = (await session.execute(select(Upload.id))).scalars().all()
    assert left == [numbers[kept.chunk_id]]
    assert len(await storage.keys("results")) == 1
    done = await commit_lines(database, kept, numbers[kept.chunk_id], [1, 2, 3, 4], final=True)
    assert done.state == "accepted"
    assert await sweep_uploads(database, storage) == 0  # committed ones stay


async def test_all_chunks_of_a_halted_batch_are_revoked_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some at a time: a statement takes no more than so many ids."""
    monkeypatch.setattr("weir_controlplane.dispatch.watch._BATCH_LIMIT", 2)
    batch_id = await put_batch(database, lines=20)
    await lease_all(database, batch_id, Process(agent_id="pod"))
    async with database.transaction() as session:
        await session.execute(update(Batch).values(suspended_at=db_now()))
    assert await revoke_halted(database) == 5
    assert all(chunk.revoked_at is not None for chunk in await chunks_of(database, batch_id))
    assert await revoke_halted(database) == 0


async def test_results_that_cannot_be_removed_keep_no_others(
    database: Database, storage: Storage, tmp_path: Path
) -> None:
    """They are tried again, behind the others: more of them than one round bears, too."""
    batch_id = await put_batch(database, lines=20)
    process = Process(agent_id="pod")
    grants = await lease_all(database, batch_id, process)
    for number, grant in enumerate(grants):
        await upload(database, storage, grant, [4 * number + at for at in (1, 2, 3, 4)])
    await settle(database, process.work(returned=grants))
    await age_uploads(database)
    async with database.read() as session:
        rows = await session.execute(select(Upload.storage_key).order_by(Upload.id))
        *blocked, removable = rows.scalars()
    for key in blocked:
        (tmp_path / "files" / key).unlink()
        (tmp_path / "files" / key).mkdir()
    swept = [await sweep_uploads(database, storage) for _ in range(3)]
    assert sum(swept) == 1
    assert not (tmp_path / "files" / removable).exists()
    for key in blocked:
        (tmp_path / "files" / key).rmdir()
    swept = [await sweep_uploads(database, storage) for _ in range(2)]
    assert sum(swept) == len(blocked)


async def test_results_that_cannot_be_removed_do_not_fill_the_rounds(
    database: Database, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of them there are, and however old."""
    monkeypatch.setattr("weir_controlplane.dispatch.sweep._LIMIT", 2)
    batch_id = await put_batch(database, lines=20)
    process = Process(agent_id="pod")
    grants = await lease_all(database, batch_id, process)
    for number, grant in enumerate(grants):
        await upload(database, storage, grant, [4 * number + at for at in (1, 2, 3, 4)])
    await settle(database, process.work(returned=grants))
    await age_uploads(database)
    async with database.transaction() as session:
        rows = await session.execute(select(Upload.storage_key).order_by(Upload.id))
        *blocked, removable = rows.scalars()
        youngest = update(Upload).where(Upload.storage_key == removable)
        await session.execute(youngest.values(created_at=Upload.created_at + 1.0))
    for key in blocked:
        (tmp_path / "files" / key).unlink()
        (tmp_path / "files" / key).mkdir()
    swept = [await sweep_uploads(database, storage) for _ in range(2 * len(grants))]
    assert sum(swept) == 1
    assert not (tmp_path / "files" / removable).exists()


async def test_results_go_as_fast_as_a_large_fleet_makes_them(
    database: Database, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round is over when nothing is left, not after so many."""
    monkeypatch.setattr("weir_controlplane.dispatch.sweep._LIMIT", 2)
    batch_id = await put_batch(database, lines=20)
    process = Process(agent_id="pod")
    grants = await lease_all(database, batch_id, process)
    for number, grant in enumerate(grants):
        await upload(database, storage, grant, [4 * number + at for at in (1, 2, 3, 4)])
    await settle(database, process.work(returned=grants))
    await age_uploads(database)
    assert await sweep_uploads(database, storage) == len(grants) == 5
    assert await storage.keys("results") == []


async def age_uploads(database: Database) -> None:
    async with database.transaction() as session:
        await session.execute(update(Upload).values(created_at=db_now() - 7200))


async def test_rule_2_a_marked_upload_cannot_be_committed(
    database: Database, storage: Storage
) -> None:
    """§8.2: the mark comes first, and a commit needs an unmarked row."""
    batch_id = await put_batch(database, lines=4)
    (grant,) = await lease_all(database, batch_id, Process(agent_id="pod"))
    number = await upload(database, storage, grant, [1, 2, 3, 4])
    async with database.transaction() as session:
        await session.execute(update(Upload).values(marked_at=db_now()))
    with pytest.raises(InvalidRequestError) as refusal:
        await commit_lines(database, grant, number, [1, 2, 3, 4], final=True)
    assert refusal.value.code == "unknown_upload"
    assert not (await lines_of(database, batch_id)).committed


async def test_rule_12_with_nothing_done_a_batch_takes_another_revision(
    database: Database, storage: Storage
) -> None:
    """§8.12: with nothing committed it re-pins, else it waits to its window."""
    fresh = await put_batch(database, lines=4)
    begun = await put_batch(database, lines=8)
    process = Process(agent_id="pod")
    (grant,) = await lease_all(database, fresh, process)
    await settle(database, process.work(returned=[grant]))
    grants = await lease_more(database, begun, process)
    number = await upload(database, storage, grants[0], [1, 2, 3, 4])
    await commit_lines(database, grants[0], number, [1, 2, 3, 4], final=True)
    await settle(database, process.work(returned=grants[1:]))
    assert await unpin(database, [fresh, begun]) == [fresh]


async def test_rule_12_a_sync_that_a_later_one_kept_waiting_is_refused(database: Database) -> None:
    """§8.12: PostgreSQL's statements have read what was there before they waited for a lock."""
    process = Process(agent_id="pod")
    process.incarnation = (await settle(database, process.work())).incarnation
    earlier, later = process.work(), process.work()
    async with database.transaction() as session:
        await identify(session, later)
        overtaken = asyncio.create_task(settle(database, earlier))
        await waiting(database, 1)
    with pytest.raises(StaleSequenceError, match=f"sequence: {later.sequence} was seen"):
        await overtaken
    async with database.read() as session:
        assert (await session.execute(select(Incarnation.sequence))).scalar_one() == later.sequence


async def test_a_batch_keeps_the_revision_that_it_is_being_leased_in(database: Database) -> None:
    """§8.12: a pod with the revision may be back while another replica sees none."""
    batch_id = await put_batch(database, lines=8)
    process = Process(agent_id="pod")
    grants = await lease_all(database, batch_id, process)
    await settle(database, process.work(returned=grants))
    back = process.work(wanted=[grants[0].chunk_id])
    async with database.transaction() as session:
        rows = await leases.open_chunks(session, back)
        (grant,) = await leases.hand_out(session, back, process.incarnation or 0, rows, 1.0)
        freed = asyncio.create_task(unpin(database, [batch_id]))
        await asyncio.sleep(0.3)
    assert await freed == []
    async with database.read() as session:
        assert (await session.get_one(Batch, batch_id)).revision == grant.revision


async def lease_more(database: Database, batch_id: str, process: Process) -> list[Grant]:
    wanted = [chunk.id for chunk in await chunks_of(database, batch_id)]
    return list((await settle(database, process.work(wanted=wanted))).grants)


async def copied(database: Database, batch_id: str, count: int, **given: object) -> list[str]:
    """So many more batches like this one, each with a copy of its only chunk."""
    (chunk,) = await chunks_of(database, batch_id)
    ids = [f"batch_copy-{number}" for number in range(count)]
    async with database.transaction() as session:
        batch = await session.get_one(Batch, batch_id)
        rows = [
            {key: getattr(row, key) for key in row.__mapper__.column_attrs.keys()}  # noqa: SIM118
            for row in (batch, chunk)
        ]
        await session.execute(insert(Batch), [rows[0] | given | {"id": key} for key in ids])
        await session.execute(
            insert(Chunk),
            [rows[1] | {"id": f"chunk_{key}", "batch_id": key} for key in ids],
        )
    return ids


async def test_more_batches_end_at_once_than_a_statement_takes_parameters(
    database: Database,
) -> None:
    """PostgreSQL's driver takes 32,767: chunks of ending batches were never closed."""
    batch_id = await put_batch(database, lines=4)
    ids = await copied(database, batch_id, 33_000, status="cancelling", cancelling_at=1.0)
    assert len(await close_ending(database)) == len(ids)
    async with database.read() as session:
        states = await session.execute(select(Chunk.state, func.count()).group_by(Chunk.state))
        assert sorted(map(tuple, states)) == [("closed", len(ids)), ("open", 1)]
    assert await unpin(database, ids) == []
    assert await renew_leases(database, dict.fromkeys(ids, "nonce")) == set()


async def test_more_batches_run_than_a_statement_takes_parameters(database: Database) -> None:
    """Nothing was dispatched then, and a control plane that was started again did not start."""
    batch_id = await put_batch(database, lines=4)
    ids = await copied(database, batch_id, 33_000, revision="gone")
    async with database.transaction() as session:
        await session.execute(update(Chunk).where(Chunk.batch_id != batch_id).values(state="done"))
    view = WorkView()
    await view.refresh(database)
    assert len(view.batches) == len(ids) + 1
    async with database.read() as session:
        work = await read_work(session, list(view.batches), await clock_s(session))
    assert list(work.remaining_tokens) == [batch_id]
    async with database.transaction() as session:
        await session.execute(update(Chunk).values(state="closed"))
    assert sorted(await unpin(database, ids)) == sorted(ids)
