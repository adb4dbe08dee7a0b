"""The output of a job that has ended, copied to the URI that it names."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from weir_controlplane.batchjobs.leases import MAX_ATTEMPTS, JobWork, hold, release, while_ours
from weir_controlplane.batchjobs.uris import allowed_uri
from weir_controlplane.batchjobs.views import ERROR_NAME, OUTPUT_NAME
from weir_controlplane.errors import InvalidRequestError, MissingObjectError
from weir_controlplane.leases import LeaseLostError
from weir_controlplane.services import Services
from weir_controlplane.store.kubernetes_models import BatchJob
from weir_controlplane.store.models import Batch, File
from weir_controlplane.uris.rules import UriRefusedError
from weir_controlplane.uris.transfer import UriAccess

_log = structlog.get_logger(__name__)


async def deliver(services: Services, work: JobWork, wanted: Callable[[], bool]) -> None:
    """Copies the files, once more whole if it was interrupted; objects appear whole or not at all.

    ``wanted`` says whether the lease is ours yet, and is asked after each step.

    Raises:
        LeaseLostError: another replica does this now.
        StorageError: the place fails; another time it may not (`end_undeliverable`).
        StorageFullError: likewise.
    """
    async with services.database.read() as session:
        job = await session.get_one(BatchJob, work.uid)
        batch = await session.get_one(Batch, work.batch_id)
        pairs = ((batch.output_file_id, OUTPUT_NAME), (batch.error_file_id, ERROR_NAME))
        files = [(await session.get_one(File, key), name) for key, name in pairs if key is not None]
    message: str | None = None
    try:
        for file, name in files:
            blocks = _whole(services.storage.stream(file.storage_key, end=file.size_bytes), file)
            await _write(services, job, name, while_ours(work, blocks, wanted))
    except (InvalidRequestError, UriRefusedError) as error:
        message = str(error)
    async with services.database.transaction() as session:
        _end(await hold(session, work), message)
    _tell(work, message)


async def end_undeliverable(services: Services, work: JobWork, message: str) -> bool:
    """Ends a delivery that has failed as often as it may; whether it has.

    The results stay in the file store, where their owner finds them.
    """
    with contextlib.suppress(LeaseLostError):
        async with services.database.transaction() as session:
            job = await hold(session, work)
            if job.work_failures + 1 < MAX_ATTEMPTS:
                return False
            _end(job, message)
        _tell(work, message)
        return True
    return False


def _end(job: BatchJob, message: str | None) -> None:
    """Of a locked job; ``message``: why it could not be delivered."""
    job.delivery = "done" if message is None else "failed"
    job.delivery_message = message
    release(job)


def _tell(work: JobWork, message: str | None) -> None:
    _log.info("batchjob_delivered" if message is None else "delivery_failed", uid=work.uid)


async def _whole(blocks: AsyncIterator[bytes], file: File) -> AsyncIterator[bytes]:
    """The blocks.

    Raises:
        MissingObjectError: the store has less of the file than was written.
    """
    left = file.size_bytes
    async for block in blocks:
        left -= len(block)
        yield block
    if left:
        raise MissingObjectError(f"{file.id} ends {left} bytes too early in the file store")


async def _write(
    services: Services, job: BatchJob, name: str, blocks: AsyncIterator[bytes]
) -> None:
    async with services.database.read() as session:
        allowed = await allowed_uri(
            session, job.tenant_id, job.output_uri or "", param="output_uri", writable=True
        )
    await UriAccess().write(allowed.uri.child(name), allowed.prefix, blocks)
