"""Who works on a batch: one replica at a time, under a lease (design.md §8.2)."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import update

from tests.controlplane.bench import put_batch
from tests.controlplane.endings import (
    ALL,
    batch_of,
    custom_ids,
    free_lease,
    outputs,
    ready,
    replica_of,
)
from tests.controlplane.support import eventually
from weir_controlplane.batches import winding_up
from weir_controlplane.batches.leases import (
    apply_due,
    claim,
    hold,
    renew,
)
from weir_controlplane.batches.worker import work_forever, work_once
from weir_controlplane.leases import LeaseLostError, void_leases
from weir_controlplane.services import Services
from weir_controlplane.store.models import Batch


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
