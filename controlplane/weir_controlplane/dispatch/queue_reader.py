"""Reads the queue from the database: running batches with their chunks, and what must stop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.dispatch.batch_view import BatchView, Out
from weir_controlplane.dispatch.leases import HALTED
from weir_controlplane.dispatch.placement import OpenChunk
from weir_controlplane.dispatch.work import CancelReason
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database, clock_s
from weir_controlplane.store.models import Batch, Chunk
from weir_controlplane.store.tenancy import Bindings, read_bindings

RUNNING = and_(
    Batch.status == "in_progress",
    Batch.closing_as.is_(None),
    Batch.suspended_at.is_(None),
    Batch.expires_at > db_now(),
    Batch.model.is_not(None),
)
"""Batches whose lines may be handed out; a subquery of them, since there may be more than a
statement takes parameters."""
MAX_OPEN_IN_VIEW = 4096  # a batch's chunks beyond these are loaded when these are leased
_ROWS_AT_ONCE = 500  # between as many, syncs are answered


@dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    """The queue at ``now_s``, the database's time.

    ``ending``: why a batch stops, those that are only halted too. ``revoked``: leased chunks that
    must be handed back.
    """

    now_s: float
    batches: dict[str, BatchView]
    ending: dict[str, CancelReason]
    revoked: frozenset[str]
    bindings: Bindings


async def read_queue(
    database: Database, known: Mapping[str, BatchView], *, default_tenant: str | None
) -> Queue:
    """The queue now; open chunks of a batch in ``known`` are not read again while they suffice."""
    async with database.read() as session:
        now_s = await clock_s(session)
        batches = await _batches(session)
        counts = await _counts(session, batches)
        revoked = await _read_out(session, batches)
        ending = await _ending(session)
        bindings = await read_bindings(session, default_tenant)
        for batch in batches.values():
            before = known.get(batch.batch_id)
            batch.open_count, batch.open_lines, batch.solo_count = counts.get(
                batch.batch_id, (0, 0, 0)
            )
            if before is not None and _is_current(before, batch):
                batch.open, batch.solo = before.open, before.solo
            elif batch.open_count:
                await _read_open(session, batch)
                await asyncio.sleep(0)
    return Queue(now_s=now_s, batches=batches, ending=ending, revoked=revoked, bindings=bindings)


async def _read_out(session: AsyncSession, batches: Mapping[str, BatchView]) -> frozenset[str]:
    """Puts leased chunks into their batches; those that were revoked, in whatever batch."""
    columns: tuple[Any, ...] = (
        *(Chunk.id, Chunk.batch_id, Chunk.position, Chunk.leased_by, Chunk.tokens),
        *(Chunk.solo, Chunk.revoked_at, Chunk.leased_at),
    )
    rows = await session.execute(select(*columns).where(Chunk.state == "leased"))
    revoked = set()
    for row in rows:
        if row.revoked_at is not None:
            revoked.add(row.id)
        if row.batch_id in batches:
            batches[row.batch_id].out[row.id] = Out(
                chunk_id=row.id,
                place=(row.position, row.id),
                holder=row.leased_by,
                tokens=row.tokens,
                solo=row.solo,
                leased_at=row.leased_at or 0.0,
            )
    return frozenset(revoked)


def _is_current(before: BatchView, now: BatchView) -> bool:
    if before.stale:
        return False
    known, solo = len(before.open) + len(before.solo), len(before.solo)
    if now.open_count > MAX_OPEN_IN_VIEW:
        return known > MAX_OPEN_IN_VIEW // 2
    return (known, solo) == (now.open_count, now.solo_count)


async def _batches(session: AsyncSession) -> dict[str, BatchView]:
    columns: tuple[Any, ...] = (
        *(Batch.id, Batch.tenant_id, Batch.model, Batch.revision, Batch.service),
        *(Batch.created_at, Batch.in_progress_at, Batch.expires_at, Batch.priority),
        Batch.missing_since,
    )
    rows = await session.execute(select(*columns).where(RUNNING))
    return {
        row.id: BatchView(
            batch_id=row.id,
            tenant_id=row.tenant_id,
            model=row.model,
            revision=row.revision,
            service=row.service,
            created_at=row.created_at,
            expires_at=row.expires_at,
            waiting_since=row.in_progress_at or row.created_at,
            priority=row.priority,
            input_missing=row.missing_since is not None,
        )
        for row in rows
    }


async def _counts(
    session: AsyncSession, batches: Mapping[str, BatchView]
) -> dict[str, tuple[int, int, int]]:
    """Open chunks, their lines, and those that run alone, by batch.

    Moves ``waiting_since`` on to the last lease.
    """
    if not batches:
        return {}
    running = Chunk.batch_id.in_(select(Batch.id).where(RUNNING))
    last = await session.execute(
        select(Chunk.batch_id, func.max(Chunk.leased_at))
        .where(running, Chunk.leased_at.is_not(None))
        .group_by(Chunk.batch_id)
    )
    for batch_id, leased_at in last:
        batch = batches.get(batch_id)  # it may have begun to run since they were read
        if batch is not None:
            batch.waiting_since = max(batch.waiting_since, leased_at or 0.0)
    rows = await session.execute(
        select(
            Chunk.batch_id,
            func.count(),
            func.sum(Chunk.lines),
            func.sum(case((Chunk.solo, 1), else_=0)),
        )
        .where(running, Chunk.state == "open")
        .group_by(Chunk.batch_id)
    )
    return {batch_id: (int(count), int(lines), int(solo)) for batch_id, count, lines, solo in rows}


async def _read_open(session: AsyncSession, batch: BatchView) -> None:
    rows = await session.execute(
        select(Chunk.id, Chunk.position, Chunk.lines, Chunk.tokens, Chunk.solo)
        .where(Chunk.batch_id == batch.batch_id, Chunk.state == "open")
        .order_by(Chunk.position, Chunk.id)
        .limit(MAX_OPEN_IN_VIEW)
    )
    for number, row in enumerate(rows, start=1):
        chunk = OpenChunk(
            chunk_id=row.id, position=row.position, lines=row.lines, tokens=row.tokens
        )
        (batch.solo if row.solo else batch.open).append(chunk)
        if number % _ROWS_AT_ONCE == 0:
            await asyncio.sleep(0)
    for chunks in (batch.open, batch.solo):  # the database may order ids in its own way
        chunks.sort(key=attrgetter("place"))


_ends = Batch.closing_as.is_not(None) | (Batch.expires_at <= db_now())


async def _ending(session: AsyncSession) -> dict[str, CancelReason]:
    rows = await session.execute(
        select(Batch.id, Batch.status, _ends.label("ends")).where(
            or_(
                Batch.status == "cancelling",
                (Batch.status == "in_progress") & or_(_ends, HALTED),
            )
        )
    )
    return {
        row.id: "cancelled"
        if row.status == "cancelling"
        else ("expired" if row.ends else "suspended")
        for row in rows
    }
