"""What ended batches leave behind: chunk results whose lines are in the output files."""

from __future__ import annotations

import asyncio

from sqlalchemy import delete, exists, func, select, update

from weir_controlplane.batches.states import TERMINAL
from weir_controlplane.services import Services
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.models import Batch, ChunkResult, Upload

KEEP_S = 3600.0  # a holder that repeats its commit is told "accepted" for so long
_BATCHES = 20


async def release_forever(services: Services) -> None:
    """Gives up chunk results until cancelled."""
    while True:
        await release(services)
        await asyncio.sleep(services.settings.sweep_s)


async def release(services: Services) -> int:
    """Leaves the results of long-ended batches to the sweeper of uploads; how many batches."""
    ended_at = func.coalesce(
        Batch.completed_at, Batch.failed_at, Batch.expired_at, Batch.cancelled_at
    )
    due = (
        select(Batch.id)
        .where(
            Batch.status.in_(TERMINAL),
            ended_at < db_now() - KEEP_S,
            exists().where(ChunkResult.batch_id == Batch.id),
        )
        .limit(_BATCHES)
    )
    async with services.database.read() as session:
        ids = list((await session.execute(due)).scalars())
    for batch_id in ids:
        async with services.database.transaction() as session:
            await session.execute(delete(ChunkResult).where(ChunkResult.batch_id == batch_id))
            await session.execute(
                update(Upload).where(Upload.batch_id == batch_id).values(committed=False)
            )
    return len(ids)
