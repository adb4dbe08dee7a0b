"""What happens to stored files: deletion, expiry, and the removal of what is left over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

import structlog
from sqlalchemy import ColumnElement, delete, exists, select, update

from weir_controlplane.batches.states import LIVE
from weir_controlplane.errors import InvalidRequestError, WeirError
from weir_controlplane.services import Services
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import OUTAGES
from weir_controlplane.store.kubernetes_models import BatchJob
from weir_controlplane.store.models import Batch, File
from weir_controlplane.store.tenancy import TenantScope

_SWEEP_ROWS = 200
_FAILURES = 20  # of one round: a store that is away need not be asked for each file
_log = structlog.get_logger(__name__)


async def delete_file(services: Services, tenant_id: str, file_id: str) -> None:
    """Deletes a file. Its row stays: cursors of lists survive it (§8.7).

    Raises:
        InvalidRequestError: an unfinished batch reads it.
        NotFoundError: there is no such file.
    """
    async with services.database.transaction() as session:
        file = await TenantScope(session, tenant_id).get(File, file_id, lock=True)
        user = select(Batch.id).where(Batch.input_file_id == file_id, Batch.status.in_(LIVE))
        batch_id = (await session.execute(user.limit(1))).scalar_one_or_none()
        if batch_id is not None:
            raise InvalidRequestError(
                f"file_id: the file is the input of {batch_id}, which has not ended; "
                "cancel that batch or wait for it",
                param="file_id",
                code="file_in_use",
            )
        file.status = "deleted"
    await _purge(services, file.id, file.storage_key)


async def forget_unfinished(services: Services, files: Collection[File]) -> None:
    """Removes files that were given up before they were there, rows and content.

    A transaction may have been committed although its answer was lost: what a row says to be there
    stays, and rows that still say "uploading" are marked first. The sweeper may have taken an
    upload for abandoned before its object appeared. What fails here is left to it.
    """
    rows = File.id.in_([file.id for file in files])
    with contextlib.suppress(WeirError, *OUTAGES):
        async with services.database.transaction() as session:
            unfinished = update(File).where(rows, File.status == "uploading")
            await session.execute(unfinished.values(status="deleted"))
            found = await session.execute(select(File.id).where(rows, File.status == "processed"))
            there = set(found.scalars())
        for file in files:
            if file.id not in there:
                await services.storage.delete(file.storage_key)
        async with services.database.transaction() as session:
            # Nobody ever saw them: no cursor of a list can stand on them.
            await session.execute(delete(File).where(rows, File.status == "deleted"))


async def sweep_forever(services: Services) -> None:
    """Removes expired files, abandoned uploads and the content of deleted files."""
    after = ""
    while True:
        after = await sweep(services, after=after)
        await asyncio.sleep(services.settings.sweep_s)


async def sweep(services: Services, *, after: str = "") -> str:
    """One round of `sweep_forever`. A file in use does not expire (§8.7).

    Contents are removed by id, beyond ``after``; returned is where the next round goes on.
    """
    in_use = exists().where(Batch.input_file_id == File.id, Batch.status.in_(LIVE))
    waiting = (BatchJob.batch_id.is_(None)) & (BatchJob.ended_at.is_(None))
    awaited = exists().where(BatchJob.input_file_id == File.id, waiting)
    expired = (File.status == "processed") & (File.expires_at <= db_now()) & ~in_use & ~awaited
    abandoned_before = db_now() - services.settings.abandoned_upload_s
    abandoned = (File.status == "uploading") & (File.created_at < abandoned_before)
    for condition in (expired, abandoned):
        while await _mark_deleted(services, condition) == _SWEEP_ROWS:  # there may be more
            pass
    return await _purge_deleted(services, after)


async def _mark_deleted(services: Services, condition: ColumnElement[bool]) -> int:
    async with services.database.transaction() as session:
        statement = select(File.id).where(condition).limit(_SWEEP_ROWS)
        # Locked, as creates of batches lock it: a file is either expired or taken, never both.
        ids = (
            (await session.execute(statement.with_for_update(skip_locked=True, key_share=True)))
            .scalars()
            .all()
        )
        if ids:
            await session.execute(
                update(File).where(File.id.in_(ids), condition).values(status="deleted")
            )
    return len(ids)


async def _purge_deleted(services: Services, after: str) -> str:
    """Removes contents until none is left, or too many could not be removed; where it stopped.

    The next round goes on behind those: they keep no others.
    """
    failed = 0
    while True:
        statement = (
            select(File.id, File.storage_key)
            .where(File.status == "deleted", File.id > after)
            .order_by(File.id)
            .limit(_SWEEP_ROWS)
        )
        async with services.database.read() as session:
            rows = (await session.execute(statement)).all()
        for file_id, storage_key in rows:
            after = file_id
            failed += not await _purge(services, file_id, storage_key)
            if failed >= _FAILURES:
                return after
        if len(rows) < _SWEEP_ROWS:
            return ""


async def _purge(services: Services, file_id: str, storage_key: str) -> bool:
    """Removes the content of a deleted file; False: the store did not, for now."""
    try:
        await services.storage.delete(storage_key)
    except WeirError as error:
        _log.warning("file_purge_postponed", file_id=file_id, error=error.code)
        return False
    own = (File.id == file_id) & (File.status == "deleted")
    # Nobody ever saw it: no cursor of a list can stand on it.
    unseen = own & (File.size_bytes == 0) & File.sha256.is_(None)
    used = exists().where(Batch.input_file_id == File.id)
    async with services.database.transaction() as session:
        await session.execute(delete(File).where(unseen, ~used))
        await session.execute(update(File).where(own).values(status="purged"))
    return True
