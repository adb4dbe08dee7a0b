"""What is asked all the time reads no batch that has ended: their rows stay for good."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from sqlalchemy import event

from tests.controlplane.support import make_settings
from weir_controlplane.app import make_services
from weir_controlplane.batches.creation import check_quota, lock_tenant
from weir_controlplane.batches.failing import count_stuck, read_failing
from weir_controlplane.batches.leases import apply_due, claim
from weir_controlplane.batches.leftovers import forget_chunks, release
from weir_controlplane.batches.metrics import running
from weir_controlplane.llmservices.schemas import PutService
from weir_controlplane.llmservices.service import put_service, service_statuses
from weir_controlplane.services import Services
from weir_controlplane.store.models import Tenant


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    services = make_services(make_settings(tmp_path))
    await services.database.open()
    yield services
    await services.database.close()


async def plans(services: Services, ask: Callable[[], Awaitable[None]]) -> list[str]:
    """How SQLite finds the rows of what is asked of batches; it knows nothing of their number."""
    asked: list[tuple[str, tuple[object, ...]]] = []
    engine = services.database.engine

    def note(*given: object) -> None:
        asked.append((str(given[2]), tuple(given[3])))  # type: ignore[arg-type]

    event.listen(engine.sync_engine, "before_cursor_execute", note)
    await ask()
    event.remove(engine.sync_engine, "before_cursor_execute", note)
    found = []
    async with engine.connect() as connection:
        for statement, values in asked:
            if "FROM batches" in statement:
                rows = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
                found += [str(row.detail) for row in rows]
    return found


async def test_looks_for_work_read_unfinished_batches_only(services: Services) -> None:
    async with services.database.transaction() as session:
        session.add(Tenant(id="t", name="t", created_at=1.0))

    async def look() -> None:
        await apply_due(services)
        await claim(services)
        async with services.database.transaction() as session:
            await check_quota(services, session, await lock_tenant(session, "t"))
            await read_failing(session)
            await count_stuck(session)
            await running(session)

    found = await plans(services, look)
    assert len(found) >= 7
    whole = ("SCAN batches", "ix_batches_tenant_list")  # of everybody; of one tenant
    assert [plan for plan in found if any(way in plan for way in whole)] == []


async def test_looks_for_leftovers_read_batches_that_have_some_only(services: Services) -> None:
    async def look() -> None:
        await release(services)
        await forget_chunks(services)

    found = [plan for plan in await plans(services, look) if " batches " in plan]
    assert len(found) == 2
    assert [plan for plan in found if "(id=?)" not in plan] == []


async def test_the_status_of_many_services_reads_the_queue_once(services: Services) -> None:
    async def show() -> None:
        async with services.database.read() as session:
            await service_statuses(services, session)

    counts = []
    for number in range(3):
        body = PutService(model="tiny", service_account="x", pods=[])
        await put_service(services, "team-a", f"svc-{number}", body)
        counts.append(len(await plans(services, show)))
    assert counts == [counts[0]] * 3 != [0] * 3
