"""What is asked all the time reads no batch that has ended: their rows stay for good."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import event

from tests.controlplane.support import make_settings
from weir_controlplane.app import make_services
from weir_controlplane.batches.creation import check_quota, lock_tenant
from weir_controlplane.batches.failing import count_stuck, read_failing
from weir_controlplane.batches.leases import apply_due, claim
from weir_controlplane.batches.metrics import running
from weir_controlplane.services import Services
from weir_controlplane.store.models import Tenant


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    services = make_services(make_settings(tmp_path))
    await services.database.open()
    yield services
    await services.database.close()


async def test_looks_for_work_read_unfinished_batches_only(services: Services) -> None:
    """By SQLite's plans, which know nothing of how many rows there are."""
    async with services.database.transaction() as session:
        session.add(Tenant(id="t", name="t", created_at=1.0))
    asked: list[tuple[str, tuple[object, ...]]] = []
    engine = services.database.engine

    def note(*given: object) -> None:
        asked.append((str(given[2]), tuple(given[3])))  # type: ignore[arg-type]

    event.listen(engine.sync_engine, "before_cursor_execute", note)
    await apply_due(services)
    await claim(services)
    async with services.database.transaction() as session:
        await check_quota(services, session, await lock_tenant(session, "t"))
        await read_failing(session)
        await count_stuck(session)
        await running(session)
    event.remove(engine.sync_engine, "before_cursor_execute", note)
    plans = []
    async with engine.connect() as connection:
        for statement, values in asked:
            if "FROM batches" in statement:
                found = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
                plans += [str(row.detail) for row in found]
    assert len(plans) >= 7
    whole = ("SCAN batches", "ix_batches_tenant_list")  # of everybody; of one tenant
    assert [plan for plan in plans if any(way in plan for way in whole)] == []
