"""Objects of a batch that the file store has lost or altered: which, and when to believe it.

A store that fails or does not answer has said nothing, and one that has none of the other files
either is not the store that it was: a folder that is not mounted, a bucket of another name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy import select

from weir_controlplane.batches.leases import Work, hold
from weir_controlplane.batches.states import Status
from weir_controlplane.batches.validation import ContentError
from weir_controlplane.errors import MissingObjectError
from weir_controlplane.files.storage import Storage
from weir_controlplane.services import Services
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.models import Batch, ChunkResult, File, Upload

BELIEVED_TIMES = 5  # in a row, the last one included
BELIEVED_AFTER_S = 1800.0  # from the first time to the last
_WITNESSES = 20

LOST_LINE = {
    "code": "results_lost",
    "message": "The file store has lost or altered the result of this request; send it again in a "
    "new batch.",
}


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What the store lacks or has altered. ``results``: storage keys of committed results."""

    input_file_id: str | None = None
    results: frozenset[str] = frozenset()


def error_of(losses: Losses) -> ContentError:
    """As the batch's owner is told."""
    if losses.input_file_id is not None:
        return ContentError(
            code="input_file_lost",
            message=f"the file store has lost the content of {losses.input_file_id}, the input "
            "file; upload it again and create a new batch",
            param="input_file_id",
        )
    return ContentError(
        code="results_lost",
        message=f"the file store has lost or altered {len(losses.results)} result objects of this "
        "batch; "
        "the error file names their lines with this code: send those again in a new batch",
    )


async def check_input(services: Services, work: Work) -> None:
    """Ends the doubt about a running batch whose input is there after all.

    Raises:
        MissingObjectError: the store still says that it is not.
        StorageError: the store says nothing.
        LeaseLostError: another replica does this now, or the batch runs no more.
    """
    if (await find_losses(services, work)).input_file_id is not None:
        raise MissingObjectError("the file store does not have the input file")
    async with services.database.transaction() as session:
        batch = await hold(session, work)
        batch.work_failures, batch.work_error = 0, None
        batch.missing_since, batch.missing_times = None, 0
        batch.work_nonce, batch.work_lease_until = None, 0.0


async def find_losses(services: Services, work: Work) -> Losses:
    """Looks at every object that the batch needs now: at results only at its end, and whole.

    Raises:
        StorageError: the store does not answer for all of them.
    """
    storage = services.storage
    async with services.database.read() as session:
        batch = await session.get_one(Batch, work.batch_id)
        file = await session.get_one(File, batch.input_file_id)
        statement = (
            select(Upload.storage_key, Upload.sha256)
            .join(ChunkResult, ChunkResult.upload_id == Upload.id)
            .where(ChunkResult.batch_id == batch.id)
        )
        results = (await session.execute(statement)).all()
    missing = await storage.is_missing(file.storage_key)
    if missing or await storage.size_bytes(file.storage_key) != file.size_bytes:
        return Losses(input_file_id=file.id)
    if work.state.closing_as is None and work.state.status is Status.IN_PROGRESS:
        return Losses()
    lost = [key for key, sha256 in results if not await _is_as_stored(storage, key, sha256)]
    return Losses(results=frozenset(lost))


async def _is_as_stored(storage: Storage, key: str, sha256: str) -> bool:
    if await storage.is_missing(key):
        return False
    digest = hashlib.sha256()
    async for block in storage.stream(key):
        digest.update(block)
    return digest.hexdigest() == sha256


async def is_believed(services: Services, work: Work) -> bool:
    """Whether that has now been so often and long enough, and the store has other files.

    Raises:
        LeaseLostError: another replica does this now.
        StorageError: the store does not answer for the other files.
    """
    async with services.database.transaction() as session:
        batch = await hold(session, work)
        times, since = batch.missing_times + 1, batch.missing_since
        now_s = await clock_s(session)
        if times < BELIEVED_TIMES or since is None or now_s - since < BELIEVED_AFTER_S:
            return False
        statement = (
            select(File.storage_key)
            .where(File.status == "processed", File.id != batch.input_file_id)
            .order_by(File.created_at.desc())
            .limit(_WITNESSES)
        )
        witnesses = list((await session.execute(statement)).scalars())
    for key in witnesses:
        if not await services.storage.is_missing(key):
            return True
    return not witnesses
