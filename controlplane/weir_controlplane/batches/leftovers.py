"""What ended batches leave behind: chunks, and results whose lines are in the output files."""

from __future__ import annotations

import asyncio

from sqlalchemy import CTE, ColumnElement, delete, exists, func, select, update
from sqlalchemy.orm import InstrumentedAttribute

from weir_controlplane.batches.states import TERMINAL
from weir_controlplane.services import Services
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.models import Batch, Chunk, ChunkResult, Suspect, Upload

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
    ids = await _ended(services, ChunkResult.batch_id)
    for batch_id in ids:
        async with services.database.transaction() as session:
            await session.execute(delete(ChunkResult).where(ChunkResult.batch_id == batch_id))
            await session.execute(
                update(Upload).where(Upload.batch_id == batch_id).values(committed=False)
            )
    return len(ids)


async def forget_chunks(services: Services) -> int:
    """Deletes chunks and suspects of long-ended batches whose results are gone; how many batches.

    Indexes of chunks are as long as the input has lines. Who still holds one is told that it is
    gone.
    """
    ids = await _ended(
        services,
        Chunk.batch_id,
        ~exists().where(ChunkResult.batch_id == Batch.id),
        ~exists().where(Upload.batch_id == Batch.id),
    )
    for batch_id in ids:
        async with services.database.transaction() as session:
            await session.execute(delete(Chunk).where(Chunk.batch_id == batch_id))
            await session.execute(delete(Suspect).where(Suspect.batch_id == batch_id))
    return len(ids)


async def _ended(
    services: Services, having: InstrumentedAttribute[str], *which: ColumnElement[bool]
) -> list[str]:
    """Long-ended batches that have a row there, some of them.

    Found from those rows: of the batches that ever ended nearly all have none.
    """
    ended_at = func.coalesce(
        Batch.completed_at, Batch.failed_at, Batch.expired_at, Batch.cancelled_at
    )
    values = _each_once(having)
    due = exists().where(
        Batch.id == values.c.value,
        Batch.status.in_(TERMINAL),
        ended_at < db_now() - KEEP_S,
        *which,
    )
    async with services.database.read() as session:
        found = await session.execute(select(values.c.value).where(due).limit(_BATCHES))
        return list(found.scalars())


def _each_once(column: InstrumentedAttribute[str]) -> CTE:
    """The values of an indexed column, by one look at the index each; None at their end.

    There may be a thousand rows for each of them.
    """
    found = select(func.min(column).label("value")).cte("found", recursive=True)
    following = select(func.min(column)).where(column > found.c.value).scalar_subquery()
    return found.union_all(select(following).where(found.c.value.is_not(None)))
