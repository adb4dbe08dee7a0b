"""Fenced leases on batches: who validates or winds up which one (§8.1, §8.2, §8.6)."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from weir_controlplane.batches.states import LIVE, Event, State, Status, advance
from weir_controlplane.ids import new_nonce
from weir_controlplane.leases import MAX_BACKOFF_S, LeaseLostError, is_free
from weir_controlplane.services import Services
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.models import Batch, Chunk

STUCK_AFTER = 3  # failures in a row
_DUE_ROWS = 50

_RUNNING = ("open", "leased")
_running = exists().where(Chunk.batch_id == Batch.id, Chunk.state.in_(_RUNNING))
_leased = exists().where(Chunk.batch_id == Batch.id, Chunk.state == "leased")
_taken = aliased(Batch)  # made once: it costs more than the query


@dataclass(frozen=True, kw_only=True)
class Work:
    """A batch to work on, under a lease. ``state`` is what it was when leased."""

    batch_id: str
    state: State
    validated: bool
    nonce: str


def state_of(batch: Batch) -> State:
    """The state of a row."""
    closing = Status(batch.closing_as) if batch.closing_as else None
    return State(status=Status(batch.status), closing_as=closing)


def set_state(batch: Batch, state: State, now_s: float) -> None:
    """Writes a state and the timestamp that goes with entering it."""
    if batch.status != state.status:
        setattr(batch, f"{state.status.value}_at", now_s)
    batch.status = state.status.value
    batch.closing_as = state.closing_as.value if state.closing_as else None


def cancel_batch(batch: Batch, now_s: float) -> None:
    """Cancels a batch that the caller has locked; nothing changes when that was done before.

    Raises:
        IllegalTransitionError: it has ended, or is finalizing.
    """
    before = state_of(batch)
    after = advance(before, Event.CANCEL)
    batch.seen_at = batch.seen_at or now_s
    if after != before:
        set_state(batch, after, now_s)
        # Whoever validates it now must stop: its lease is void.
        batch.work_nonce, batch.work_lease_until = None, 0.0


async def apply_due(services: Services) -> None:
    """Moves batches on whose window has ended, or whose last chunk is done."""
    window_ended = and_(
        Batch.status.in_((Status.VALIDATING, Status.IN_PROGRESS)),
        Batch.closing_as.is_(None),
        Batch.expires_at <= db_now(),
    )
    lines_done = and_(Batch.status == Status.IN_PROGRESS, Batch.closing_as.is_(None), ~_running)
    # Done comes first: a batch whose every line is committed in time has not expired.
    await _apply(services, lines_done, Event.LINES_DONE)
    await _apply(services, window_ended, Event.WINDOW_ENDED)


async def _apply(services: Services, due: ColumnElement[bool], event: Event) -> None:
    async with services.database.read() as session:
        ids = (await session.execute(select(Batch.id).where(due).limit(_DUE_ROWS))).scalars().all()
    for batch_id in ids:
        async with services.database.transaction() as session:
            statement = select(Batch).where(Batch.id == batch_id, due)
            found = await session.execute(statement.with_for_update(of=Batch))
            batch = found.scalar_one_or_none()
            if batch is not None:
                now_s = await clock_s(session)
                happened = await _happened(session, batch, event)
                set_state(batch, advance(state_of(batch), happened), now_s)
                batch.work_nonce, batch.work_lease_until = None, 0.0


async def _happened(session: AsyncSession, batch: Batch, event: Event) -> Event:
    """What has happened to a batch, now that it is locked.

    A commit that its lock waited for may have been of the last chunk.
    """
    if event is not Event.WINDOW_ENDED or batch.status != Status.IN_PROGRESS:
        return event
    left = select(exists().where(Chunk.batch_id == batch.id, Chunk.state.in_(_RUNNING)))
    return event if (await session.execute(left)).scalar_one() else Event.LINES_DONE


async def claim(services: Services) -> Work | None:
    """A lease on a batch that needs work and that nobody works on; None: nothing.

    Of the tenants with the fewest at work, the oldest: a long input must not keep those of others
    waiting behind all that its tenant has.
    """
    winding_up = or_(
        Batch.status == Status.FINALIZING,
        # Those who hold chunks of it commit what is finished first, or lose them after their grace.
        and_(
            or_(Batch.status == Status.CANCELLING, Batch.closing_as == Status.EXPIRED),
            ~_leased,
        ),
    )
    # Agents were told that its input is missing: is it?
    doubted = and_(
        Batch.status == Status.IN_PROGRESS,
        Batch.closing_as.is_(None),
        Batch.missing_since.is_not(None),
    )
    at_work = (
        select(_taken.tenant_id, func.count().label("batches"))
        .where(_taken.status.in_(LIVE), _taken.work_nonce.is_not(None))
        .where(_taken.work_lease_until > db_now())
        .group_by(_taken.tenant_id)
        .subquery()
    )
    statement = (
        select(Batch)
        .outerjoin(at_work, at_work.c.tenant_id == Batch.tenant_id)
        .where(
            Batch.status.in_(LIVE),  # those that have ended are many, and are not to be read
            or_(Batch.status == Status.VALIDATING, winding_up, doubted),
            is_free(Batch, services.settings),
        )
        .order_by(func.coalesce(at_work.c.batches, 0), Batch.created_at)
        .limit(1)
        .with_for_update(skip_locked=True, of=Batch)
    )
    async with services.database.transaction() as session:
        batch = (await session.execute(statement)).scalar_one_or_none()
        if batch is None:
            return None
        batch.work_owner = services.replica
        batch.work_attempt += 1
        batch.work_nonce = new_nonce()
        batch.work_lease_until = await clock_s(session) + services.settings.work_lease_s
        return Work(
            batch_id=batch.id,
            state=state_of(batch),
            validated=batch.in_progress_at is not None,
            nonce=batch.work_nonce,
        )


async def renew(services: Services, work: Work) -> None:
    """Makes the lease last a whole length from now.

    Raises:
        LeaseLostError: it is not ours any more.
    """
    async with services.database.transaction() as session:
        until = db_now() + services.settings.work_lease_s
        found = await session.execute(
            update(Batch)
            .where(Batch.id == work.batch_id, Batch.work_nonce == work.nonce)
            .values(work_lease_until=until)
            .returning(Batch.id)
        )
        if found.scalar_one_or_none() is None:
            raise LeaseLostError(work.batch_id)


async def hold(session: AsyncSession, work: Work) -> Batch:
    """The batch, locked for this transaction: the last check before a result is written.

    Raises:
        LeaseLostError: it is not ours any more.
    """
    statement = select(Batch).where(Batch.id == work.batch_id, Batch.work_nonce == work.nonce)
    # Chunks may be added meanwhile: who cuts one holds it, and winding up waits for it.
    found = await session.execute(statement.with_for_update(key_share=True))
    batch = found.scalar_one_or_none()
    if batch is None:
        raise LeaseLostError(work.batch_id)
    return batch


async def give_up(
    services: Services, work: Work, reason: str, *, missing: bool = False, still: bool = False
) -> None:
    """Ends the lease after a failure; the next attempt waits, longer each time.

    ``missing``: the store lacks an object, or has altered it. Any other failure in between makes
    that count begin anew. ``still``: nothing moved for so long that the batch is stuck at once.
    """
    async with services.database.transaction() as session:
        statement = select(Batch).where(Batch.id == work.batch_id, Batch.work_nonce == work.nonce)
        found = await session.execute(statement.with_for_update())
        batch = found.scalar_one_or_none()
        if batch is not None:
            least = STUCK_AFTER if still else 0
            batch.work_failures = max(batch.work_failures + 1, least)
            wait_s = min(MAX_BACKOFF_S, 2.0 ** min(batch.work_failures, 10))
            batch.work_error = reason
            batch.work_nonce = None
            now_s = await clock_s(session)
            batch.work_lease_until = now_s + wait_s
            if missing:
                batch.missing_times += 1
                # One in the future is of a clock that was ahead.
                batch.missing_since = min(batch.missing_since or now_s, now_s)
            elif batch.missing_since is not None:
                batch.missing_times, batch.missing_since = 0, now_s


async def give_back(services: Services, work: Work) -> None:
    """Ends the lease unfinished and unharmed: at shutdown."""
    async with services.database.transaction() as session:
        await session.execute(
            update(Batch)
            .where(Batch.id == work.batch_id, Batch.work_nonce == work.nonce)
            .values(work_nonce=None, work_lease_until=0.0)
        )
