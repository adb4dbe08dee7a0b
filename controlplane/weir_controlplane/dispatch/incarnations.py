"""Processes of agents: numbers issued once a boot id, and syncs in their order (§8.12)."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from sqlalchemy import delete, exists, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from weir_controlplane.dispatch.bounds import AHEAD_S, MAX_PAUSE_S
from weir_controlplane.dispatch.errors import StaleIncarnationError, StaleSequenceError
from weir_controlplane.dispatch.work import SyncWork
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database, clock_s
from weir_controlplane.store.fleet_models import Agent, Death, Incarnation
from weir_controlplane.store.models import Chunk

REMEMBERED_S = 7 * 86_400.0  # as long as its demand: every pod of a deployment is another agent
_FORGET_ROWS = 500
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who syncs. ``first``: the process holds no incarnation yet, so adopt for it.

    ``now_s`` is the database's time after the agent's row was locked.
    """

    incarnation: int
    first: bool
    pause_until: float | None
    now_s: float


async def identify(session: AsyncSession, work: SyncWork) -> Identity:
    """The incarnation of the process that syncs; holds the agent's row until the end.

    Raises:
        StaleIncarnationError: a newer process has this agent id.
        StaleSequenceError: a later sync of the same process was seen.
    """
    if work.incarnation is not None:
        return await _known(session, work, work.incarnation)
    await _ensure_agent(session, work)
    agent = (
        await session.execute(
            select(Agent.incarnation, Agent.pause_until)
            .where(Agent.agent_id == work.agent_id)
            .with_for_update()
        )
    ).one()
    number = await _issue(session, work, newest=agent.incarnation)
    return Identity(
        incarnation=number,
        first=True,
        pause_until=agent.pause_until,
        now_s=await clock_s(session),
    )


async def _known(session: AsyncSession, work: SyncWork, number: int) -> Identity:
    statement = (
        select(Agent.incarnation, Agent.pause_until, Incarnation.id)
        .outerjoin(
            Incarnation, (Incarnation.id == number) & (Incarnation.agent_id == Agent.agent_id)
        )
        .where(Agent.agent_id == work.agent_id)
        .with_for_update(of=Agent)
    )
    row = (await session.execute(statement)).one_or_none()
    if row is None or row.incarnation != number or row.id is None:
        raise StaleIncarnationError(work.agent_id, 0 if row is None else row.incarnation)
    return Identity(
        incarnation=number,
        first=False,
        pause_until=row.pause_until,
        now_s=await _advance(session, number, work.sequence),
    )


async def _advance(session: AsyncSession, number: int, sequence: int) -> float:
    """Notes a sequence above all before it, under the agent's lock; the database's time.

    Raises:
        StaleSequenceError: it is not above them.
    """
    # PostgreSQL's statement that waited for the lock has read the other tables, and the clock, as
    # they were before: only a statement after it sees what the lock's last holder has written.
    noted = await session.execute(
        update(Incarnation)
        .where(Incarnation.id == number, Incarnation.sequence < sequence)
        .values(sequence=sequence)
        .returning(Incarnation.id, db_now().label("now_s"))
    )
    row = noted.one_or_none()
    if row is None:
        seen = await session.execute(select(Incarnation.sequence).where(Incarnation.id == number))
        raise StaleSequenceError(seen.scalar_one())
    return float(row.now_s)


async def _ensure_agent(session: AsyncSession, work: SyncWork) -> None:
    # Two first calls of a new agent at once: one inserts, the other finds it.
    values = {
        "agent_id": work.agent_id,
        "service": work.service,
        "incarnation": 0,
        "state": work.state,
        "models": [],
        "room": {},
        "pauses": 0,
        "last_sync_at": db_now(),
    }
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    await session.execute(insert(Agent).values(values).on_conflict_do_nothing())


async def _issue(session: AsyncSession, work: SyncWork, *, newest: int) -> int:
    known = (
        await session.execute(
            select(Incarnation.id, Incarnation.sequence).where(
                Incarnation.agent_id == work.agent_id, Incarnation.boot_id == work.boot_id
            )
        )
    ).one_or_none()
    if known is not None:
        if known.id != newest:
            raise StaleIncarnationError(work.agent_id, newest)
        if work.sequence < known.sequence:
            raise StaleSequenceError(known.sequence)
        await _set_sequence(session, known.id, work.sequence)
        return int(known.id)
    row = Incarnation(
        agent_id=work.agent_id, boot_id=work.boot_id, sequence=work.sequence, created_at=db_now()
    )
    session.add(row)
    await session.flush()
    await session.execute(
        update(Agent)
        .where(Agent.agent_id == work.agent_id)
        .values(incarnation=row.id, service=work.service, state=work.state, last_sync_at=db_now())
    )
    return row.id


async def _set_sequence(session: AsyncSession, number: int, sequence: int) -> None:
    await session.execute(
        update(Incarnation).where(Incarnation.id == number).values(sequence=sequence)
    )


async def forget_agents(database: Database) -> int:
    """Deletes agents that were silent for `REMEMBERED_S`, and deaths as old; how many agents.

    One that comes back later is told that it is stale, and starts over.
    """
    since = db_now() - REMEMBERED_S
    holds = (
        exists()
        .where(Incarnation.agent_id == Agent.agent_id, Chunk.leased_by == Incarnation.id)
        .where(Chunk.state == "leased")
    )
    silent = select(Agent.agent_id).where(Agent.last_sync_at < since, ~holds)
    async with database.transaction() as session:
        found = await session.execute(silent.limit(_FORGET_ROWS).with_for_update(skip_locked=True))
        gone = list(found.scalars())
        await session.execute(delete(Death).where(Death.agent_id.in_(gone) | (Death.at < since)))
        await session.execute(delete(Incarnation).where(Incarnation.agent_id.in_(gone)))
        await session.execute(delete(Agent).where(Agent.agent_id.in_(gone)))
    return len(gone)


async def forget_incarnations(database: Database) -> int:
    """Deletes processes of agents that another took the place of `REMEMBERED_S` ago; how many.

    What they held is closed or adopted since, and their deaths are forgotten. The newest of each
    agent stays: it may be at work.
    """
    later = aliased(Incarnation)
    succeeded = exists().where(
        later.agent_id == Incarnation.agent_id,
        later.id > Incarnation.id,
        later.created_at < db_now() - REMEMBERED_S,
    )
    holds = exists().where(Chunk.leased_by == Incarnation.id, Chunk.state == "leased")
    some = select(Incarnation.id).where(succeeded, ~holds).limit(_FORGET_ROWS)
    async with database.transaction() as session:
        gone = await session.execute(
            delete(Incarnation)
            .where(Incarnation.id.in_(some))
            .returning(Incarnation.id)
            .execution_options(synchronize_session=False)
        )
        return len(gone.all())


async def set_agents_right(database: Database) -> int:
    """Corrects what a clock that was ahead of the time has left of agents; how many.

    A last sync in the future counts as of now (a living agent's next one follows), and a pause
    longer than any is over: both would last for as long as the clock was ahead.
    """
    future = Agent.last_sync_at > db_now() + AHEAD_S
    endless = Agent.pause_until > db_now() + MAX_PAUSE_S
    async with database.transaction() as session:
        found = await session.execute(
            select(Agent.agent_id)
            .where(or_(future, endless))
            .limit(_FORGET_ROWS)
            .with_for_update(skip_locked=True)
        )
        wrong = list(found.scalars())
        for which, column in ((future, Agent.last_sync_at), (endless, Agent.pause_until)):
            await session.execute(
                update(Agent)
                .where(Agent.agent_id.in_(wrong), which)
                .values({column: db_now()})
                .execution_options(synchronize_session=False)
            )
    if wrong:
        _log.warning("agents_set_right", agents=len(wrong))
    return len(wrong)
