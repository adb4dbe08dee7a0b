"""What must happen to leases without anyone asking: expiry, revocation, and the end of batches.

Every replica may run every function at any time; each is one transaction, safe to repeat.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import structlog
from sqlalchemy import case, exists, false, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.dispatch import metrics
from weir_controlplane.dispatch.bounds import AHEAD_S, GRACE_S, LEASE_S, OUTAGE_AFTER_S
from weir_controlplane.dispatch.leases import HALTED
from weir_controlplane.dispatch.restructure import close_chunks, reopen
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database, clock_s
from weir_controlplane.store.fleet_models import Incarnation
from weir_controlplane.store.models import Batch, Chunk, DispatchClock

_ID = 1
_BATCH_LIMIT = 500
_SLICE_IDS = 1_000
_ENDING = or_(
    Batch.status == "cancelling", (Batch.status == "in_progress") & Batch.closing_as.is_not(None)
)
_ENDS_SINCE = case((Batch.status == "cancelling", Batch.cancelling_at), else_=Batch.expires_at)
_log = structlog.get_logger(__name__)


async def may_expire(session: AsyncSession) -> bool:
    """Whether leases may expire now; notes that somebody watched (§8.1).

    Nobody could renew a lease while the database, or every replica, was away: when the last watch
    is long past, none expires for one length.
    """
    now_s = await clock_s(session)
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    await session.execute(
        insert(DispatchClock)
        .values(id=_ID, watched_at=now_s, hold_until=now_s)
        .on_conflict_do_nothing()
    )
    row = (
        await session.execute(
            select(DispatchClock).where(DispatchClock.id == _ID).with_for_update(key_share=True)
        )
    ).scalar_one()
    if now_s - row.watched_at > OUTAGE_AFTER_S:
        row.hold_until = now_s + LEASE_S
        metrics.LEASE_HOLDS.inc()
        _log.warning("leases_held_after_outage", away_s=round(now_s - row.watched_at, 1))
    # A clock that was ahead of the time for a while has left both ahead of it.
    row.watched_at, row.hold_until = now_s, min(row.hold_until, now_s + LEASE_S)
    return now_s >= row.hold_until


async def expire_leases(database: Database) -> int:
    """Opens the chunks whose lease has run out, and those whose holder did not heed a revocation.

    The number of chunks.
    """
    async with database.transaction() as session:
        await _shorten(session)
        if not await may_expire(session):
            return 0
        rows = await session.execute(
            select(Chunk.id)
            .where(
                Chunk.state == "leased",
                or_(Chunk.lease_until < db_now(), Chunk.revoked_at < db_now() - GRACE_S),
            )
            .order_by(Chunk.id)
            .limit(_BATCH_LIMIT)
            .with_for_update(key_share=True, skip_locked=True)
        )
        expired = list(rows.scalars())
        await reopen(session, expired)
    if expired:
        metrics.LEASES.labels(event="expired").inc(len(expired))
        _log.info("leases_expired", chunks=len(expired))
    return len(expired)


async def _shorten(session: AsyncSession) -> None:
    """Gives leases one length that a clock which was ahead of the time has left with more."""
    rows = await session.execute(
        select(Chunk.id)
        .where(Chunk.state == "leased", Chunk.lease_until > db_now() + 2 * LEASE_S)
        .order_by(Chunk.id)
        .limit(_BATCH_LIMIT)
        .with_for_update(key_share=True, skip_locked=True)
    )
    longer = list(rows.scalars())
    if longer:
        await session.execute(
            update(Chunk).where(Chunk.id.in_(longer)).values(lease_until=db_now() + LEASE_S)
        )
        _log.warning("leases_shortened", chunks=len(longer))


async def revoke_halted(database: Database) -> int:
    """Asks the holders of halted batches' chunks to stop; the number of chunks newly asked.

    Again and again, so that a lease that was handed out meanwhile is found too. A holder that
    does not heed it loses the chunk after `GRACE_S`, as with any revocation.
    """
    total = 0
    while True:
        asked = await _revoke_some(database)
        total += asked
        if asked < _BATCH_LIMIT:
            return total


async def _revoke_some(database: Database) -> int:
    async with database.transaction() as session:
        halted = select(Batch.id).where(Batch.status == "in_progress", HALTED)
        rows = await session.execute(
            select(Chunk.id)
            .where(Chunk.state == "leased", Chunk.revoked_at.is_(None), Chunk.batch_id.in_(halted))
            .order_by(Chunk.id)
            .limit(_BATCH_LIMIT)
            .with_for_update(key_share=True, skip_locked=True)
        )
        held = list(rows.scalars())
        if held:
            await session.execute(
                update(Chunk).where(Chunk.id.in_(held)).values(revoked_at=db_now())
            )
    return len(held)


async def renew_leases(database: Database, nonces: Mapping[str, str]) -> set[str]:
    """Gives leases (nonce by chunk) a whole length from now; those that got it.

    Those that are left out are lost, or busy in another transaction.
    """
    renewed: set[str] = set()
    for chunk_ids in _slices(nonces):
        async with database.transaction() as session:
            rows = await session.execute(
                select(Chunk.id, Chunk.nonce)
                .where(Chunk.id.in_(chunk_ids), Chunk.state == "leased")
                .order_by(Chunk.id)
                .with_for_update(key_share=True, skip_locked=True)
            )
            ours = {row.id for row in rows if row.nonce == nonces[row.id]}
            await session.execute(
                update(Chunk)
                .where(Chunk.id.in_(ours))
                .values(lease_until=db_now() + LEASE_S)
                .execution_options(synchronize_session=False)
            )
        renewed |= ours
    metrics.LEASES.labels(event="renewed").inc(len(renewed))
    return renewed


def _slices(ids: Collection[str]) -> Iterator[list[str]]:
    """No more at a time than a statement takes parameters."""
    ordered = sorted(ids)
    for start in range(0, len(ordered), _SLICE_IDS):
        yield ordered[start : start + _SLICE_IDS]


async def close_ending(database: Database) -> list[str]:
    """Closes chunks of batches that are cancelled or out of time; the batches left without any.

    Open ones at once; leased ones `GRACE_S` later, so that what is finished can be committed. If
    the batch ended in an outage, that long after it: its holders could not commit meanwhile.
    A batch out of time must have been marked as such before: without chunks it counts as done.
    """
    async with database.transaction() as session:
        now_s, back_s = await clock_s(session), await _back_s(session)
        await session.execute(  # else a clock that was ahead lengthens the holders' time
            update(Batch)
            .where(Batch.status == "cancelling", Batch.cancelling_at > now_s + AHEAD_S)
            .values(cancelling_at=now_s)
            .execution_options(synchronize_session=False)
        )
        live = exists().where(Chunk.batch_id == Batch.id, Chunk.state.in_(("open", "leased")))
        rows = await session.execute(select(Batch.id).where(_ENDING, live))
        ids = set(rows.scalars())
        if not ids:
            return []
        # Not by ids, of which there may be more than a statement takes parameters.
        ending = Chunk.batch_id.in_(select(Batch.id).where(_ENDING))
        in_grace = now_s - back_s <= GRACE_S
        late = false() if in_grace else now_s - _ENDS_SINCE > GRACE_S
        over = select(Batch.id).where(_ENDING, or_(_ENDS_SINCE.is_(None), late))
        kept_no_longer = Chunk.batch_id.in_(over)
        await close_chunks(session, ending & or_(Chunk.state == "open", kept_no_longer))
        left = select(Chunk.batch_id).where(ending, Chunk.state.in_(("open", "leased")))
        return sorted(ids.difference((await session.execute(left.distinct())).scalars()))


async def _back_s(session: AsyncSession) -> float:
    """When somebody watched again after the last outage, or before that where there was none."""
    clock = await session.get(DispatchClock, _ID)
    return 0.0 if clock is None else clock.hold_until - LEASE_S


async def unpin(database: Database, batch_ids: Collection[str]) -> list[str]:
    """Lets batches whose revision nobody serves take another, if nothing of them is done (§8.12).

    Those that now can.
    """
    freed: list[str] = []
    for part in _slices(batch_ids):
        freed += await _unpin(database, part)
    return freed


async def _unpin(database: Database, batch_ids: Collection[str]) -> list[str]:
    async with database.transaction() as session:
        begun = exists().where(Chunk.batch_id == Batch.id, Chunk.state.in_(("leased", "done")))
        found = await session.execute(
            select(Batch.id)
            .where(Batch.id.in_(batch_ids), Batch.status == "in_progress", ~begun)
            .order_by(Batch.id)
            .with_for_update(key_share=True, skip_locked=True)
        )
        free = set(found.scalars()) - await _being_leased(session, batch_ids)
        freed = await session.execute(
            update(Batch)
            .where(Batch.id.in_(free))
            .values(revision=None)
            .returning(Batch.id)
            .execution_options(synchronize_session=False)
        )
        return list(freed.scalars())


async def _being_leased(session: AsyncSession, batch_ids: Collection[str]) -> set[str]:
    """Those with a chunk that is leased, or that another transaction works at; locks the others.

    A pod may be back with the revision: what it is given at this moment is pinned to it.
    """
    live = Chunk.batch_id.in_(batch_ids) & Chunk.state.in_(("open", "leased"))
    chunks = select(Chunk.id, Chunk.batch_id, Chunk.state).where(live).order_by(Chunk.id)
    known = (await session.execute(chunks)).all()
    locked = await session.execute(chunks.with_for_update(key_share=True, skip_locked=True))
    still = {row.id for row in locked if row.state == "open"}
    return {row.batch_id for row in known if row.id not in still}


async def release_agent(database: Database, agent_id: str) -> int:
    """Opens every chunk of an agent that is known to be gone (§8.1); the number of chunks."""
    own = select(Incarnation.id).where(Incarnation.agent_id == agent_id)
    async with database.transaction() as session:
        rows = await session.execute(
            select(Chunk.id)
            .where(Chunk.state == "leased", Chunk.leased_by.in_(own))
            .order_by(Chunk.id)
            .with_for_update(key_share=True)
        )
        held = list(rows.scalars())
        await reopen(session, held)
    if held:
        metrics.LEASES.labels(event="released").inc(len(held))
        _log.info("agent_gone", agent_id=agent_id, chunks=len(held))
    return len(held)
