"""Removal of chunk results that nobody can commit any more (§8.2).

A row is marked first, conditionally; a commit needs an unmarked one. Then the object goes, then
the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog
from sqlalchemy import delete, update

from weir_controlplane.dispatch import metrics
from weir_controlplane.dispatch.commits import sweepable
from weir_controlplane.errors import WeirError
from weir_controlplane.files.storage import Storage
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database
from weir_controlplane.store.models import Upload

STALE_AFTER_S = 3600.0  # no body is on its way for so long
_LIMIT = 200  # at once
_FAILURES = 3  # of one round: a store that is away need not be asked for each object
_log = structlog.get_logger(__name__)


async def sweep_uploads(
    database: Database, storage: Storage, *, stale_after_s: float = STALE_AFTER_S
) -> int:
    """Removes abandoned uploads; their number. What cannot be removed goes behind the others."""
    total = 0
    while True:
        async with database.transaction() as session:
            marked = await sweepable(session, stale_after_s=stale_after_s, limit=_LIMIT)
        swept = await _remove(database, storage, marked)
        total += swept
        if swept < _LIMIT:  # a large fleet makes more between two rounds
            return total


async def _remove(database: Database, storage: Storage, marked: Sequence[Any]) -> int:
    swept = failed = 0
    for upload_id, key in marked:
        row = Upload.id == upload_id
        try:
            await storage.delete(key)
        except WeirError as error:
            _log.warning("upload_sweep_postponed", upload_id=upload_id, error=error.code)
            async with database.transaction() as session:
                await session.execute(update(Upload).where(row).values(marked_at=db_now()))
            failed += 1
            if failed >= _FAILURES:
                break
            continue
        async with database.transaction() as session:
            await session.execute(delete(Upload).where(row))
        swept += 1
    metrics.SWEPT_UPLOADS.inc(swept)
    return swept
