"""Leases: handed out, renewed, returned, adopted and taken back, each a conditional update (§8.2).

Every function works inside the caller's transaction, with the agent's row locked; chunk rows are
locked in the order of their ids, and so that rows which refer to them can still be added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from sqlalchemy import Row, Select, bindparam, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.dispatch.bounds import LEASE_S
from weir_controlplane.dispatch.restructure import reopen
from weir_controlplane.dispatch.work import Grant, LeaseRef, SyncWork
from weir_controlplane.ids import new_nonce
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.fleet_models import Incarnation
from weir_controlplane.store.models import Batch, Chunk
from weir_controlplane.store.tenancy import may_serve

ChunkRow: TypeAlias = Row[Any]
# Nothing of the batch is to run now. Lines whose input is missing would keep a pod's room, and a
# suspect among them the whole pod, from other batches.
HALTED = or_(Batch.suspended_at.is_not(None), Batch.missing_since.is_not(None))
_COLUMNS = (
    Chunk.id,
    Chunk.batch_id,
    Chunk.position,
    Chunk.attempt,
    Chunk.nonce,
    Chunk.solo,
    Chunk.lines,
    Chunk.size_bytes,
    Chunk.tokens,
    Chunk.density,
    Chunk.prefix_group,
    Chunk.leased_sequence,
    Chunk.lines_done,
    Chunk.revoked_at,
    Batch.tenant_id,
    Batch.model,
    Batch.revision,
    Batch.endpoint,
    Batch.status,
    Batch.closing_as,
    Batch.expires_at,
    HALTED.label("halted"),
)


def _chunks() -> Select[Any]:
    columns: tuple[Any, ...] = _COLUMNS
    return select(*columns).join(Batch, Batch.id == Chunk.batch_id).order_by(Chunk.id)


async def held_by(session: AsyncSession, incarnation: int) -> Sequence[ChunkRow]:
    """What the database says an incarnation holds; the rows are locked."""
    statement = _chunks().where(Chunk.leased_by == incarnation, Chunk.state == "leased")
    found: Sequence[ChunkRow] = (
        await session.execute(statement.with_for_update(of=Chunk, key_share=True))
    ).all()
    return found


async def held_chunks(session: AsyncSession) -> dict[str, int]:
    """How many chunks each agent holds, whichever replica it syncs with; without those of none."""
    rows = await session.execute(
        select(Incarnation.agent_id, func.count())
        .join(Chunk, Chunk.leased_by == Incarnation.id)
        .where(Chunk.state == "leased")
        .group_by(Incarnation.agent_id)
    )
    return {agent_id: int(count) for agent_id, count in rows}


async def held_by_predecessors(
    session: AsyncSession, agent_id: str, incarnation: int
) -> Sequence[ChunkRow]:
    """What earlier processes of the agent still hold; the rows are locked."""
    earlier = select(Incarnation.id).where(
        Incarnation.agent_id == agent_id, Incarnation.id != incarnation
    )
    statement = _chunks().where(Chunk.leased_by.in_(earlier), Chunk.state == "leased")
    found: Sequence[ChunkRow] = (
        await session.execute(statement.with_for_update(of=Chunk, key_share=True))
    ).all()
    return found


async def open_chunks(session: AsyncSession, work: SyncWork) -> Sequence[ChunkRow]:
    """Those of the chunks wanted that the service can be given now, in the order wanted.

    Rows that others have locked are left out.
    """
    statement = _chunks().where(
        Chunk.id.in_(work.wanted),
        Chunk.state == "open",
        Batch.status == "in_progress",
        Batch.closing_as.is_(None),
        Batch.expires_at > db_now(),
        ~HALTED,
        or_(Batch.service.is_(None), Batch.service == work.service),
        may_serve(work.service, work.default_tenant),
    )
    found = await session.execute(
        statement.with_for_update(of=Chunk, key_share=True, skip_locked=True)
    )
    place = {chunk_id: number for number, chunk_id in enumerate(work.wanted)}
    return sorted(found, key=lambda row: place[row.id])


def ends(row: ChunkRow, now_s: float) -> bool:
    """Whether the chunk's batch takes no more work."""
    open_to_work = row.status == "in_progress" and row.closing_as is None
    return bool(not open_to_work or row.expires_at <= now_s)


async def hand_out(
    session: AsyncSession, work: SyncWork, incarnation: int, rows: Sequence[ChunkRow], now_s: float
) -> list[Grant]:
    """Leases the locked chunks to the incarnation as new attempts, model and revision permitting.

    The first lease of a batch pins its revision (§8.12).
    """
    pinned: dict[str, str | None] = {}
    grants = []
    for row in rows:
        served = work.revision_of(row.model)
        if served is None:
            continue
        if row.batch_id not in pinned:
            pinned[row.batch_id] = await _pin(session, row, served)
        if pinned[row.batch_id] == served:
            grants.append(_grant(row, served, now_s))
    if grants:
        await (await session.connection()).execute(
            update(Chunk).where(Chunk.id == bindparam("b_id")),
            [
                {
                    "b_id": item.chunk_id,
                    "state": "leased",
                    "attempt": item.attempt,
                    "nonce": item.nonce,
                    "leased_by": incarnation,
                    "leased_sequence": work.sequence,
                    "leased_at": now_s,
                    "lease_until": now_s + LEASE_S,
                    "lines_done": 0,
                }
                for item in grants
            ],
        )
    return grants


async def _pin(session: AsyncSession, row: ChunkRow, served: str) -> str | None:
    if row.revision is not None:
        return str(row.revision)
    # Another pod may pin it at this moment: the row's lock decides, the loser reads what won.
    await session.execute(
        update(Batch)
        .where(Batch.id == row.batch_id, Batch.revision.is_(None))
        .values(revision=served)
    )
    statement = select(Batch.revision).where(Batch.id == row.batch_id)
    return (await session.execute(statement)).scalar_one()


def _grant(row: ChunkRow, revision: str, now_s: float) -> Grant:
    return Grant(
        chunk_id=row.id,
        attempt=row.attempt + 1,
        nonce=new_nonce(),
        batch_id=row.batch_id,
        tenant_id=row.tenant_id,
        model=row.model,
        revision=revision,
        endpoint=row.endpoint,
        position=row.position,
        lines=row.lines,
        bytes=row.size_bytes,
        tokens=row.tokens,
        density=row.density,
        prefix_group=row.prefix_group,
        deadline_s=max(0.0, row.expires_at - now_s),
        solo=row.solo,
    )


async def renew(session: AsyncSession, rows: Sequence[ChunkRow], refs: dict[str, LeaseRef]) -> None:
    """Gives the locked leases a full length from now and notes how far their lines are."""
    if not rows:
        return
    await session.execute(
        update(Chunk)
        .where(Chunk.id.in_([row.id for row in rows]))
        .values(lease_until=db_now() + LEASE_S)
    )
    moved = [
        {"b_id": row.id, "lines_done": min(refs[row.id].lines_done, row.lines)}
        for row in rows
        if refs[row.id].lines_done != row.lines_done
    ]
    if moved:
        await (await session.connection()).execute(
            update(Chunk).where(Chunk.id == bindparam("b_id")), moved
        )


async def give_back(
    session: AsyncSession, rows: Sequence[ChunkRow], returned: Sequence[LeaseRef]
) -> set[str]:
    """Opens those of the locked chunks that their holder returns; the ids."""
    named = {(ref.chunk_id, ref.attempt, ref.nonce) for ref in returned}
    back = {row.id for row in rows if (row.id, row.attempt, row.nonce) in named}
    await reopen(session, sorted(back))
    return back
