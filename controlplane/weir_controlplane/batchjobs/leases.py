"""Fenced leases on BatchJobs: who reads an input or delivers an output (§8.2)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.batches.leases import STUCK_AFTER
from weir_controlplane.batches.states import TERMINAL
from weir_controlplane.ids import new_nonce
from weir_controlplane.leases import MAX_BACKOFF_S, LeaseLostError, is_free, longest_lease_s
from weir_controlplane.services import Services
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.kubernetes_models import BatchJob
from weir_controlplane.store.models import Batch

MAX_ATTEMPTS = 12  # about ten minutes, with the pauses between them


@dataclass(frozen=True, kw_only=True)
class JobWork:
    """A job to work on, under a lease. ``batch_id`` None: its batch is still to be made."""

    uid: str
    tenant_id: str
    batch_id: str | None
    nonce: str


# What may be claimed: jobs whose input is to be read, and those whose output is to be delivered.
INPUTS = and_(
    BatchJob.batch_id.is_(None), BatchJob.ended_at.is_(None), BatchJob.suspended.is_(False)
)
OUTPUTS = and_(
    BatchJob.delivery == "pending",
    select(Batch.id).where(Batch.id == BatchJob.batch_id, Batch.status.in_(TERMINAL)).exists(),
)


async def claim(
    services: Services, wanted: ColumnElement[bool], *, without: Collection[str] = ()
) -> JobWork | None:
    """A lease on the oldest job that needs such work and is of none of these tenants; None: none.

    Those that failed come last: it may have taken them minutes, and will again.
    """
    statement = (
        select(BatchJob)
        .where(
            wanted,
            is_free(BatchJob, services.settings),
            BatchJob.tenant_id.not_in(without),
        )
        .order_by(BatchJob.work_failures > 0, BatchJob.created_at, BatchJob.uid)
        .limit(1)
        .with_for_update(skip_locked=True, of=BatchJob)
    )
    async with services.database.transaction() as session:
        job = (await session.execute(statement)).scalar_one_or_none()
        return None if job is None else _take(services, job, await clock_s(session))


def take_new(services: Services, job: BatchJob, now_s: float) -> JobWork | None:
    """A lease on a job that the caller has locked; None: its batch is made, or not wanted now."""
    wanted = job.batch_id is None and job.ended_at is None and not job.suspended
    free = not now_s < job.work_lease_until <= now_s + longest_lease_s(services.settings)
    return _take(services, job, now_s) if wanted and free else None


def _take(services: Services, job: BatchJob, now_s: float) -> JobWork:
    nonce = new_nonce()
    job.work_nonce, job.work_lease_until = nonce, now_s + services.settings.work_lease_s
    return JobWork(uid=job.uid, tenant_id=job.tenant_id, batch_id=job.batch_id, nonce=nonce)


async def renew(services: Services, work: JobWork) -> None:
    """Makes the lease last a whole length from now.

    Raises:
        LeaseLostError: it is not ours any more.
    """
    async with services.database.transaction() as session:
        until = db_now() + services.settings.work_lease_s
        found = await session.execute(
            update(BatchJob)
            .where(BatchJob.uid == work.uid, BatchJob.work_nonce == work.nonce)
            .values(work_lease_until=until)
            .returning(BatchJob.uid)
        )
        if found.scalar_one_or_none() is None:
            raise LeaseLostError(work.uid)


async def while_ours(
    work: JobWork, blocks: AsyncIterator[bytes], wanted: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """The same blocks, for as long as the work is ours; ``wanted`` is asked after each.

    Raises:
        LeaseLostError: it is not any more.
    """
    async for block in blocks:
        if not wanted():
            raise LeaseLostError(work.uid)
        yield block


async def hold(session: AsyncSession, work: JobWork) -> BatchJob:
    """The job, locked for this transaction.

    Raises:
        LeaseLostError: it is not ours any more, was cancelled or is suspended.
    """
    statement = select(BatchJob).where(BatchJob.uid == work.uid, BatchJob.work_nonce == work.nonce)
    job = (await session.execute(statement.with_for_update())).scalar_one_or_none()
    if job is None or (work.batch_id is None and (job.suspended or job.ended_at is not None)):
        raise LeaseLostError(work.uid)
    return job


def release(job: BatchJob) -> None:
    """Ends the lease on a locked job after a success."""
    job.work_nonce, job.work_lease_until = None, 0.0
    job.work_failures, job.work_error, job.work_message = 0, None, None


async def give_up(
    services: Services,
    work: JobWork,
    reason: str,
    message: str | None = None,
    *,
    still: bool = False,
) -> None:
    """Ends the lease after a failure; the next attempt waits, longer each time.

    ``still``: nothing moved for so long that the job is stuck at once.
    """
    async with services.database.transaction() as session:
        statement = select(BatchJob).where(
            BatchJob.uid == work.uid, BatchJob.work_nonce == work.nonce
        )
        job = (await session.execute(statement.with_for_update())).scalar_one_or_none()
        if job is not None:
            job.work_failures = max(job.work_failures + 1, STUCK_AFTER if still else 0)
            job.work_error, job.work_message = reason, message
            job.work_nonce = None
            wait_s = min(MAX_BACKOFF_S, 2.0 ** min(job.work_failures, 10))
            job.work_lease_until = await clock_s(session) + wait_s


async def give_back(services: Services, work: JobWork) -> None:
    """Ends the lease unfinished: at shutdown, or when the work is not wanted any more."""
    async with services.database.transaction() as session:
        statement = select(BatchJob).where(
            BatchJob.uid == work.uid, BatchJob.work_nonce == work.nonce
        )
        job = (await session.execute(statement.with_for_update())).scalar_one_or_none()
        if job is not None:
            job.work_nonce, job.work_lease_until = None, 0.0
