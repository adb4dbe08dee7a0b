"""Deaths of engines, accepted once: resident lines suspected, their chunks taken apart (§8.5).

The rules are in `poison`; here they meet the database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import structlog
from sqlalchemy import event, exists, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.dispatch import metrics
from weir_controlplane.dispatch.bounds import MAX_PAUSE_S
from weir_controlplane.dispatch.poison import (
    ERROR_CODE,
    Line,
    Suspicion,
    Verdict,
    after_death,
    pause_s,
)
from weir_controlplane.dispatch.residents import suspected
from weir_controlplane.dispatch.restructure import cut_open_chunks, marked_lines
from weir_controlplane.dispatch.work import ReportedDeath
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.fleet_models import Agent, Death, Incarnation
from weir_controlplane.store.line_index import lines_of_ranges, unpack_lines
from weir_controlplane.store.models import Batch, Chunk, Suspect

_log = structlog.get_logger(__name__)


async def lock_concerned(
    session: AsyncSession, agent_id: str, deaths: Sequence[ReportedDeath]
) -> None:
    """Locks the batches of the resident lines and of what the agent holds, then their chunks.

    All that the sync will lock of them, each in the order of its ids: a death locks chunks of
    others too, and whoever locked its own first would wait for them in a circle. And before
    anything is written of a line, as a commit does: from then on no commit of these batches leaves
    lines over that the death knows nothing of.
    """
    own = select(Incarnation.id).where(Incarnation.agent_id == agent_id)
    resident = select(Chunk.batch_id).where(
        Chunk.id.in_({chunk for death in deaths for chunk, _, _ in death.resident})
    )
    held = (Chunk.state == "leased") & Chunk.leased_by.in_(own)
    await session.execute(
        select(Batch.id)
        .where(or_(Batch.id.in_(resident), Batch.id.in_(select(Chunk.batch_id).where(held))))
        .order_by(Batch.id)
        .with_for_update(key_share=True)  # not FOR UPDATE: commits add rows that refer to it
    )
    live = Chunk.batch_id.in_(resident) & Chunk.state.in_(("open", "leased"))
    chunks = select(Chunk.id).where(or_(live, held)).order_by(Chunk.id)
    locked: set[str] = set()
    while True:
        found = set((await session.execute(chunks.with_for_update(key_share=True))).scalars())
        if found <= locked:
            return
        locked |= found  # a commit that we waited for may have made new ones


async def accept_deaths(
    session: AsyncSession, agent_id: str, deaths: Sequence[ReportedDeath], now_s: float
) -> float | None:
    """Records the deaths that are new; `lock_concerned` came before.

    The new end of the pod's pause; None when it got none.
    """
    seen = set(
        (
            await session.execute(
                select(Death.death_id).where(
                    Death.agent_id == agent_id,
                    Death.death_id.in_([death.death_id for death in deaths]),
                )
            )
        ).scalars()
    )
    until: float | None = None
    for death in deaths:
        if death.death_id not in seen:
            seen.add(death.death_id)
            until = await _accept(session, agent_id, death, now_s) or until
    return until


async def _accept(
    session: AsyncSession, agent_id: str, death: ReportedDeath, now_s: float
) -> float | None:
    session.add(
        Death(
            agent_id=agent_id,
            death_id=death.death_id,
            kind=death.kind,
            solo=death.solo,
            resident=[list(item) for item in death.resident],
            at=now_s,
        )
    )
    resident = await suspected(session, agent_id, death)
    verdict = await _judge(session, resident, named=len(death.resident))
    counted = metrics.DEATHS.labels(kind=death.kind, suspects="yes" if resident else "no")
    _once_committed(session, counted.inc)
    _log.warning(
        "engine_died",
        agent_id=agent_id,
        death_id=death.death_id,
        kind=death.kind,
        suspects=len(resident),
    )
    if verdict.lines:
        await _write(session, verdict)
        await _take_apart(session, {batch for batch, _ in verdict.lines})
    if verdict.pause and not death.resident:
        return await _pause(session, agent_id, now_s)
    return None


def _once_committed(session: AsyncSession, count: Callable[[], None]) -> None:
    """Counts what a transaction did only if it did it: the agent tells of it until then."""
    event.listen(session.sync_session, "after_commit", lambda _session: count(), once=True)


async def _judge(session: AsyncSession, resident: Sequence[Line], *, named: int) -> Verdict:
    batches = {batch for batch, _ in resident}
    counts: dict[str, int] = {}
    known: dict[Line, Suspicion] = {}
    if batches:
        found = await session.execute(select(Batch.id, Batch.deaths).where(Batch.id.in_(batches)))
        counts = {row.id: row.deaths for row in found}
        rows = await session.execute(select(Suspect).where(Suspect.batch_id.in_(batches)))
        known = {
            (row.batch_id, row.line): Suspicion(
                state=_state(row.state), deaths=row.deaths, solo_deaths=row.solo_deaths
            )
            for row in rows.scalars()
        }
    return after_death(resident, known=known, batch_deaths=counts, named=named)


def _state(value: str) -> Any:  # noqa: ANN401 - one of poison.State, as the column holds it
    return value


async def _write(session: AsyncSession, verdict: Verdict) -> None:
    for batch, count in verdict.batch_deaths.items():
        await session.execute(update(Batch).where(Batch.id == batch).values(deaths=count))
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    for (batch, line), item in verdict.lines.items():
        values = {
            "state": item.state,
            "deaths": item.deaths,
            "solo_deaths": item.solo_deaths,
            "error": _error(item) if item.state == "failed" else None,
            "updated_at": db_now(),
        }
        if item.state == "failed":
            _once_committed(session, metrics.POISONED_LINES.inc)
            _log.warning("line_failed_as_poison", batch_id=batch, line=line, deaths=item.deaths)
        await session.execute(
            insert(Suspect)
            .values(batch_id=batch, line=line, **values)
            .on_conflict_do_update(index_elements=["batch_id", "line"], set_=values)
        )


def _error(item: Suspicion) -> dict[str, Any]:
    alone = f", {item.solo_deaths} of them as the only offline line" if item.solo_deaths else ""
    return {
        "code": ERROR_CODE,
        "message": f"the engine died {item.deaths} times while it ran this line{alone}",
    }


async def _take_apart(session: AsyncSession, batches: Collection[str]) -> None:
    marked = await marked_lines(session, batches)
    rows = await session.execute(
        select(Chunk.id, Chunk.batch_id, Chunk.state, Chunk.solo, Chunk.line_index).where(
            Chunk.batch_id.in_(marked), Chunk.state.in_(("open", "leased"))
        )
    )
    opened: list[str] = []
    leased: list[str] = []
    for row in rows:
        lines = {item.line for item in unpack_lines(row.line_index)}
        failed = lines & marked[row.batch_id].failed
        suspects = lines & marked[row.batch_id].suspects
        if failed or (suspects and not row.solo):
            (opened if row.state == "open" else leased).append(row.id)
    await session.execute(
        update(Chunk)
        .where(Chunk.id.in_(leased), Chunk.revoked_at.is_(None))
        .values(revoked_at=db_now())
    )
    await cut_open_chunks(session, opened)


async def _pause(session: AsyncSession, agent_id: str, now_s: float) -> float:
    row = (
        await session.execute(
            select(Agent.pauses, Agent.pause_until).where(Agent.agent_id == agent_id)
        )
    ).one()
    pauses = 1
    if row.pause_until is not None and now_s - row.pause_until < MAX_PAUSE_S:
        began_s = row.pause_until - pause_s(row.pauses)
        if not await _has_committed(session, agent_id, leased_after_s=began_s):
            pauses = row.pauses + 1
    until = now_s + pause_s(pauses)
    await session.execute(
        update(Agent).where(Agent.agent_id == agent_id).values(pauses=pauses, pause_until=until)
    )
    _log.warning("dispatch_paused", agent_id=agent_id, pause_s=pause_s(pauses))
    return until


async def _has_committed(session: AsyncSession, agent_id: str, *, leased_after_s: float) -> bool:
    """Whether the pod has done work that it was given since then: its engine runs lines."""
    own = select(Incarnation.id).where(Incarnation.agent_id == agent_id)
    done = exists().where(
        Chunk.leased_by.in_(own), Chunk.state == "done", Chunk.leased_at > leased_after_s
    )
    return bool((await session.execute(select(done))).scalar_one())


async def clear_suspects(
    session: AsyncSession, batch_id: str, ranges: Sequence[Sequence[int]], marked: Mapping[int, str]
) -> None:
    """Clears the marked lines that a commit answers: a result stands against any suspicion."""
    answered = set(lines_of_ranges(ranges)) & set(marked)
    if answered:
        await session.execute(
            update(Suspect)
            .where(Suspect.batch_id == batch_id, Suspect.line.in_(answered))
            .values(state="cleared", error=None, updated_at=db_now())
        )
