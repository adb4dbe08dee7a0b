"""From an accepted BatchJob to its batch: the input becomes a file, the file a batch, each once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.batches.creation import check_quota, key_of_job, lock_tenant
from weir_controlplane.batches.schemas import NewBatch, accepted_window_s
from weir_controlplane.batches.states import Status
from weir_controlplane.batchjobs.leases import MAX_ATTEMPTS, JobWork, hold, release, while_ours
from weir_controlplane.batchjobs.uris import allowed_uri
from weir_controlplane.errors import InvalidRequestError, StorageError
from weir_controlplane.files.service import forget_unfinished
from weir_controlplane.ids import new_id
from weir_controlplane.leases import LeaseLostError
from weir_controlplane.services import Services
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.kubernetes_models import BatchJob
from weir_controlplane.store.models import Batch, File
from weir_controlplane.uris.rules import UriRefusedError
from weir_controlplane.uris.transfer import UriAccess, UriUnreadableError

_log = structlog.get_logger(__name__)


class InputRefusedError(Exception):
    """The input can never become a batch; carries code and reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


async def take_in(services: Services, work: JobWork, wanted: Callable[[], bool]) -> None:
    """Makes the job's batch, or ends the job with what is wrong with its input.

    ``wanted`` says whether the lease is ours yet, and is asked after each step.

    Raises:
        LeaseLostError: another replica does this, or it is not wanted any more.
        WeirError: not now: storage or network fail, or the tenant's quota is used up.
    """
    try:
        file_id = await _input_file(services, work, wanted)
        await _make_batch(services, work, file_id)
    except InputRefusedError as error:
        await _refuse(services, work, error)
    else:
        await services.nudge.send("batches")


async def _input_file(services: Services, work: JobWork, wanted: Callable[[], bool]) -> str:
    """The job's input as a file of its tenant; made at the first attempt that gets so far."""
    async with services.database.transaction() as session:
        job = await hold(session, work)
        if job.input_file_id is not None:
            return job.input_file_id
        file = File(
            id=new_id("file-"),
            tenant_id=job.tenant_id,
            filename=f"{job.namespace}-{job.name}.jsonl",
            purpose="batch",
            size_bytes=0,
            status="uploading",
            created_at=await clock_s(session),
            storage_key="",
        )
        file.storage_key = f"files/{file.id}"
        session.add(file)
        blocks = await _blocks(services, session, job)
    try:
        await _store(services, work, file, while_ours(work, blocks, wanted))
    except Exception:  # not where it is cancelled: the store may be ending it yet
        await asyncio.shield(forget_unfinished(services, [file]))
        raise
    return file.id


async def _blocks(services: Services, session: AsyncSession, job: BatchJob) -> AsyncIterator[bytes]:
    if job.input_uri is None:
        text = select(BatchJob.input_inline).where(BatchJob.uid == job.uid)
        return _once((await session.execute(text)).scalar_one() or b"")
    try:
        allowed = await allowed_uri(session, job.tenant_id, job.input_uri, param="input.uri")
    except InvalidRequestError as error:  # a prefix was taken away since
        raise InputRefusedError("uri_not_allowed", error.message) from None
    access = UriAccess(private_hosts=services.settings.uri_private_hosts)
    return access.read(allowed.uri, allowed.prefix)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _store(
    services: Services, work: JobWork, file: File, blocks: AsyncIterator[bytes]
) -> None:
    bound = services.settings.max_file_bytes
    try:
        async with services.storage.writer(file.storage_key) as writer:
            async for block in blocks:
                await writer.write(block)
                if writer.bytes > bound:
                    raise InputRefusedError(
                        "input_too_large", f"input: larger than {bound} bytes; split it"
                    )
    except (UriUnreadableError, UriRefusedError) as error:
        raise InputRefusedError("input_unreadable", f"input.uri: {error}") from error
    async with services.database.transaction() as session:
        job = await hold(session, work)
        row = await session.get(File, file.id, with_for_update={"key_share": True})
        if row is None or row.status != "uploading":  # the sweeper took it for abandoned
            raise StorageError("the copy took longer than abandoned_upload_s")
        row.status, row.size_bytes, row.sha256 = "processed", writer.bytes, writer.sha256
        row.created_at = await clock_s(session)
        # It is our copy. In use it stays longer: while the job waits, and while its batch runs.
        row.expires_at = row.created_at + services.settings.output_expires_s
        job.input_file_id, job.input_inline = row.id, None


async def _make_batch(services: Services, work: JobWork, file_id: str) -> None:
    async with services.database.read() as session:
        tenant_id = (await session.get_one(BatchJob, work.uid)).tenant_id
    async with services.database.transaction() as session:
        tenant = await lock_tenant(session, tenant_id)
        job = await hold(session, work)
        key = key_of_job(job.uid)
        made = select(Batch.id).where(Batch.tenant_id == tenant.id, Batch.idempotency_key == key)
        job.batch_id = (await session.execute(made)).scalar_one_or_none()
        if job.batch_id is not None:  # it was forgotten, and is told of once more
            release(job)
            return
        file = await session.get(File, file_id, with_for_update={"key_share": True})
        if file is None or file.status != "processed":
            raise InputRefusedError("input_unreadable", "input: its file was deleted")
        await check_quota(services, session, tenant)
        now_s = await clock_s(session)
        body = NewBatch.model_validate(
            {
                "input_file_id": file_id,
                "endpoint": job.endpoint,
                "completion_window": job.completion_window,
                "metadata": job.labels,
            }
        )
        batch = Batch(
            id=new_id("batch_"),
            tenant_id=tenant.id,
            input_file_id=file_id,
            endpoint=job.endpoint,
            completion_window=job.completion_window,
            labels=job.labels,
            output_expires_s=services.settings.output_expires_s,
            model=job.model,
            service=job.service,
            priority=job.priority,
            status=Status.VALIDATING,
            created_at=now_s,
            expires_at=now_s + accepted_window_s(job.completion_window),
            idempotency_key=key,
            fingerprint=body.fingerprint(tenant.id),
            matched_retry_counts=[],
        )
        session.add(batch)
        await session.flush()
        job.batch_id = batch.id
        release(job)
    _log.info("batchjob_submitted", uid=work.uid, batch_id=batch.id)


async def end_overdue(services: Services, work: JobWork, message: str) -> bool:
    """Ends a job whose completion window has passed without its input; whether it did.

    ``message`` says why the last attempt failed.
    """
    error = InputRefusedError(
        "input_unreadable", f"input: could not be read within the completion window: {message}"
    )
    with contextlib.suppress(LeaseLostError):
        async with services.database.transaction() as session:
            job = await hold(session, work)
            if not is_overdue(job, await clock_s(session)):
                return False
        await _refuse(services, work, error)
        return True
    return False


def is_overdue(job: BatchJob, now_s: float) -> bool:
    """Whether a job whose attempt has failed has had its time to read its input.

    The window goes on while a job is suspended: resumed, it has `MAX_ATTEMPTS` in any case.
    """
    ends_at = job.created_at + accepted_window_s(job.completion_window)
    tried_often = job.work_failures + 1 >= MAX_ATTEMPTS
    return job.input_file_id is None and tried_often and now_s >= ends_at


async def _refuse(services: Services, work: JobWork, error: InputRefusedError) -> None:
    async with services.database.transaction() as session:
        job = await hold(session, work)
        job.errors = [{"code": error.code, "line": None, "message": str(error), "param": "input"}]
        job.ended_at = await clock_s(session)
        release(job)
    _log.info("batchjob_refused", uid=work.uid, code=error.code)
