"""What the operator's calls do to BatchJobs: accept once, suspend, resume, cancel, forget.

Level-triggered: every call says what is wanted and may be repeated. Reading the input and making
the batch is left to `intake`, delivering the output to `delivery`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass

import structlog
from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.batches.leases import cancel_batch
from weir_controlplane.batches.schemas import window_s
from weir_controlplane.batches.states import TERMINAL, IllegalTransitionError
from weir_controlplane.batchjobs.leases import JobWork, take_new
from weir_controlplane.batchjobs.schemas import PutBatchJob
from weir_controlplane.batchjobs.uris import allowed_uri
from weir_controlplane.dispatch.watch import revoke_halted
from weir_controlplane.errors import ConflictError, NotFoundError
from weir_controlplane.services import Services
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.kubernetes_models import BatchJob
from weir_controlplane.store.models import Batch
from weir_controlplane.store.tenancy import tenant_of_namespace

TOPIC = "batchjobs"
CHUNKS_TOPIC = "chunks"
BATCHES_TOPIC = "batches"
_log = structlog.get_logger(__name__)


class JobNotFoundError(NotFoundError):
    """There is no such BatchJob."""

    default_code = "batch_not_found"

    def __init__(self, uid: str) -> None:
        super().__init__(f"there is no BatchJob {uid}", param="uid")


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """A job after a PUT. ``matches``: the call asked for what had been accepted.

    ``work``: a lease on an inline job, so that the call itself makes the batch and answers it.
    """

    job: BatchJob
    matches: bool
    work: JobWork | None


async def put_job(services: Services, uid: str, body: PutBatchJob) -> Accepted:
    """Accepts a BatchJob, or takes over what may change of one that is known.

    Raises:
        InvalidRequestError: a field is wrong.
        PermissionDeniedError: no tenant has the namespace.
        JobNotFoundError: the caller knows its batch, and it is not here.
        ConflictError: the uid is another object's.
    """
    fingerprint = _fingerprint(body)
    async with services.database.transaction() as session:
        job = await _locked(session, uid)
        if job is None:
            if body.batch_id is not None:
                raise JobNotFoundError(uid)
            await _insert(services, session, uid, body, fingerprint)
            job = await _locked(session, uid)
            if job is None:
                raise JobNotFoundError(uid)
        if (job.namespace, job.name) != (body.namespace, body.name):
            raise ConflictError(
                f"uid: it is the BatchJob {job.namespace}/{job.name}",
                param="uid",
                code="uid_in_use",
            )
        moved = await _wish(session, job, body)
        inline = job.input_uri is None
        work = take_new(services, job, await clock_s(session)) if inline else None
    if moved:
        await revoke_halted(services.database)
        await services.nudge.send(CHUNKS_TOPIC)
    if job.batch_id is None and work is None:
        await services.nudge.send(TOPIC)
    return Accepted(job=job, matches=job.fingerprint == fingerprint, work=work)


async def cancel_job(services: Services, uid: str) -> BatchJob:
    """Cancels a job; one that has ended stays as it is.

    Raises:
        JobNotFoundError: there is none.
    """
    async with services.database.transaction() as session:
        job = await _known(session, uid)
        now_s = await clock_s(session)
        if job.batch_id is None:
            job.ended_at = job.ended_at or now_s
            job.work_nonce, job.work_lease_until = None, 0.0
        else:
            batch = await _batch(session, job.batch_id)
            with contextlib.suppress(IllegalTransitionError):  # it ends by itself
                cancel_batch(batch, now_s)
    await services.nudge.send(BATCHES_TOPIC)
    return job


async def forget_job(services: Services, uid: str) -> None:
    """Forgets a job that has ended; without effect when there is none. Files and output stay.

    Raises:
        ConflictError: it has not ended.
    """
    async with services.database.transaction() as session:
        job = await _locked(session, uid)
        if job is None:
            return
        ended = job.ended_at is not None
        if job.batch_id is not None:
            batch = await _batch(session, job.batch_id)
            ended = batch.status in TERMINAL and job.delivery != "pending"
        if not ended:
            raise ConflictError("uid: it has not ended; cancel it first", code="not_ended")
        await session.delete(job)


async def _insert(
    services: Services, session: AsyncSession, uid: str, body: PutBatchJob, fingerprint: str
) -> None:
    # Only of a new one: it may be suspended yet when its window is not allowed any more.
    window_s(body.completion_window, services.settings)
    tenant_id = await tenant_of_namespace(session, body.namespace, services.settings.default_tenant)
    if body.input.uri is not None:
        await allowed_uri(session, tenant_id, body.input.uri, param="input.uri")
    if body.output_uri is not None:
        await allowed_uri(session, tenant_id, body.output_uri, param="output_uri", writable=True)
    insert = postgresql.insert if services.database.dialect == "postgresql" else sqlite.insert
    # Two replicas may be asked at once: the first input wins.
    await session.execute(
        insert(BatchJob)
        .values(
            uid=uid,
            tenant_id=tenant_id,
            namespace=body.namespace,
            name=body.name,
            service=f"{body.namespace}/{body.service}" if body.service else None,
            model=body.model,
            endpoint=body.endpoint,
            completion_window=body.completion_window,
            priority=body.priority,
            suspended=body.suspended,
            deadline_at=body.deadline_at,
            labels=body.metadata,
            fingerprint=fingerprint,
            created_at=await clock_s(session),
            input_inline=None if body.input.inline is None else body.input.inline.encode(),
            input_uri=body.input.uri,
            output_uri=body.output_uri,
            delivery="none" if body.output_uri is None else "pending",
        )
        .on_conflict_do_nothing()
    )
    _log.info("batchjob_accepted", uid=uid, tenant_id=tenant_id, suspended=body.suspended)


async def _wish(session: AsyncSession, job: BatchJob, body: PutBatchJob) -> bool:
    """Takes over what may change; whether a live batch was suspended or resumed."""
    if job.suspended and not body.suspended and job.batch_id is None:
        job.work_failures = 0  # its window has gone on: it is given time to read its input yet
    job.suspended, job.priority = body.suspended, body.priority
    job.deadline_at = body.deadline_at
    if job.batch_id is None:
        return False
    batch = await _batch(session, job.batch_id)
    batch.priority = body.priority
    if batch.status in TERMINAL or body.suspended == (batch.suspended_at is not None):
        return False
    batch.suspended_at = await clock_s(session) if body.suspended else None
    _log.info("batch_suspended" if body.suspended else "batch_resumed", batch_id=batch.id)
    return True


async def _locked(session: AsyncSession, uid: str) -> BatchJob | None:
    statement = select(BatchJob).where(BatchJob.uid == uid)
    return (await session.execute(statement.with_for_update())).scalar_one_or_none()


async def _known(session: AsyncSession, uid: str) -> BatchJob:
    job = await _locked(session, uid)
    if job is None:
        raise JobNotFoundError(uid)
    return job


async def _batch(session: AsyncSession, batch_id: str) -> Batch:
    statement = select(Batch).where(Batch.id == batch_id)
    return (await session.execute(statement.with_for_update())).scalar_one()


def _fingerprint(body: PutBatchJob) -> str:
    identity = body.model_dump(exclude={"suspended", "priority", "deadline_at", "batch_id"})
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
