"""What ended batches leave behind: chunks, and results whose lines are in the output files."""

from __future__ import annotations

import asyncio

from sqlalchemy import ColumnElement, delete, exists, func, select, update

from weir_controlplane.batches.states import TERMINAL
from weir_controlplane.services import Services
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.models import Batch, Chunk, ChunkResult, Upload

KEEP_S = 3600.0  # a holder that repeats its commit is told "accepted" for so long
_BATCHES = 20


async def release_forever(services: Services) -> None:
    """Gives up chunks and their results until cancelled."""
    while True:
        for remove in (release, forget_chunks):
            while await remove(services) == _BATCHES:  # there may be more
                pass
        await asyncio.sleep(services.settings.sweep_s)


async def release(services: Services) -> int:
    """Leaves the results of long-ended batches to the sweeper of uploads; how many batches."""
    ids = await _ended(services, exists().where(ChunkResult.batch_id == Batch.id))
    for batch_id in ids:
        async with services.database.transaction() as session:
            await session.execute(delete(ChunkResult).where(ChunkResult.batch_id == batch_id))
            await session.execute(
                update(Upload).where(Upload.batch_id == batch_id).values(committed=False)
            )
    return len(ids)


async def forget_chunks(services: Services) -> int:
    """Deletes the chunks of long-ended batches whose results are gone; how many batches.

    Their indexes are as long as the input has lines. Who still holds one is told that it is gone.
    """
    ids = await _ended(
        services,
        exists().where(Chunk.batch_id == Batch.id),
        ~exists().where(ChunkResult.batch_id == Batch.id),
        Batch.id.not_in(select(Upload.batch_id)),
    )
    for batch_id in ids:
        async with services.database.transaction() as session:
            await session.execute(delete(Chunk).where(Chunk.batch_id == batch_id))
    return len(ids)


async def _ended(services: Services, *which: ColumnElement[bool]) -> list[str]:
    ended_at = func.coalesce(
        Batch.completed_at, Batch.failed_at, Batch.expired_at, Batch.cancelled_at
    )
    due = (
        select(Batch.id)
        .where(Batch.status.in_(TERMINAL), ended_at < db_now() - KEEP_S, *which)
        .limit(_BATCHES)
    )
    async with services.database.read() as session:
        return list((await session.execute(due)).scalars())
