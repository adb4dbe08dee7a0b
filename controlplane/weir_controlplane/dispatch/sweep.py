"""Removal of chunk results that nobody can commit any more (§8.2).

A row is marked first, conditionally; a commit needs an unmarked one. Then the object goes, then
the row.
"""

from __future__ import annotations

from weir_controlplane.dispatch import metrics
from weir_controlplane.dispatch.commits import sweepable
from weir_controlplane.files.storage import Storage
from weir_controlplane.store.database import Database
from weir_controlplane.store.models import Upload

STALE_AFTER_S = 3600.0  # no body is on its way for so long
_LIMIT = 200


async def sweep_uploads(
    database: Database, storage: Storage, *, stale_after_s: float = STALE_AFTER_S
) -> int:
    """Removes abandoned uploads; their number. What is left after an error goes the next time."""
    async with database.transaction() as session:
        marked = await sweepable(session, stale_after_s=stale_after_s, limit=_LIMIT)
    for upload_id, key in marked:
        await storage.delete(key)
        async with database.transaction() as session:
            row = await session.get(Upload, upload_id)
            if row is not None:
                await session.delete(row)
    metrics.SWEPT_UPLOADS.inc(len(marked))
    return len(marked)
