"""`/v1/batches`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.batches.creation import CreateCall, create_batch
from weir_controlplane.batches.leases import cancel_batch
from weir_controlplane.batches.progress import progress_of
from weir_controlplane.batches.schemas import NewBatch, batch_view
from weir_controlplane.batches.states import IllegalTransitionError, Status
from weir_controlplane.errors import InvalidRequestError
from weir_controlplane.keys.auth import TenantDep
from weir_controlplane.repeats import ArrivedDep, RepeatsDep
from weir_controlplane.services import Services, ServicesDep
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.models import Batch
from weir_controlplane.store.tenancy import PageRequest, TenantScope, page_view

SUSPENDED = "Suspended"  # beside the reasons of `dispatch.reasons`: its BatchJob says so
router = APIRouter(prefix="/v1/batches")


@router.post("")
async def create(
    arrived_s: ArrivedDep,
    body: NewBatch,
    tenant_id: TenantDep,
    services: ServicesDep,
    repeats: RepeatsDep,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> dict[str, Any]:
    """Creates a batch; it is validated in the background."""
    call = CreateCall(
        tenant_id=tenant_id,
        body=body,
        idempotency_key=idempotency_key,
        retry_count=repeats,
        arrived_s=arrived_s,
    )
    batch = await create_batch(services, call)
    async with services.database.read() as session:
        return await _view(services, session, batch)


@router.get("")
async def list_batches(
    tenant_id: TenantDep,
    services: ServicesDep,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """A page of the tenant's batches, the newest first."""
    async with services.database.read() as session:
        page = await TenantScope(session, tenant_id).page(
            Batch, PageRequest(after=after, limit=limit)
        )
        progress = await progress_of(session, page.rows)
    views = [batch_view(row, progress[row.id], _waiting_reason(services, row)) for row in page.rows]
    return page_view(page, views)


@router.get("/{batch_id}")
async def retrieve(batch_id: str, tenant_id: TenantDep, services: ServicesDep) -> dict[str, Any]:
    """One batch, with its progress."""
    async with services.database.read() as session:
        batch = await TenantScope(session, tenant_id).get(Batch, batch_id)
        view = await _view(services, session, batch)
    if batch.seen_at is None:  # from now on a create like this one's is a new batch (§8.7)
        async with services.database.transaction() as session:
            await session.execute(
                update(Batch)
                .where(Batch.id == batch_id, Batch.seen_at.is_(None))
                .values(seen_at=db_now())
            )
    return view


@router.post("/{batch_id}/cancel")
async def cancel(
    batch_id: str, tenant_id: TenantDep, services: ServicesDep, repeats: RepeatsDep
) -> dict[str, Any]:
    """Cancels a batch; what is committed is kept. A repeat finds what the first call has done.

    Raises:
        InvalidRequestError: every line is done already, or the batch has ended.
    """
    async with services.database.transaction() as session:
        batch = await TenantScope(session, tenant_id).get(Batch, batch_id, lock=True)
        try:
            cancel_batch(batch, await clock_s(session))
        except IllegalTransitionError:
            if not (repeats and batch.status == Status.CANCELLED):
                raise InvalidRequestError(
                    f"batch_id: a batch that is {batch.status} cannot be cancelled",
                    param="batch_id",
                    code="invalid_batch_state",
                ) from None
        await session.flush()
        view = await _view(services, session, batch)
    await services.nudge.send("batches")
    return view


async def _view(services: Services, session: AsyncSession, batch: Batch) -> dict[str, Any]:
    progress = await progress_of(session, [batch])
    return batch_view(batch, progress[batch.id], _waiting_reason(services, batch))


def _waiting_reason(services: Services, batch: Batch) -> str | None:
    if batch.status != Status.IN_PROGRESS or batch.closing_as is not None:
        return None
    if batch.suspended_at is not None:
        return SUSPENDED
    outlook = services.outlook.of(batch.id)
    return None if outlook is None else outlook.waiting_reason
