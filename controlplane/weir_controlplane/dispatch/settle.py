"""The durable part of a sync: one transaction, in the order that docs/protocol.md gives."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.dispatch import leases, metrics
from weir_controlplane.dispatch.deaths import accept_deaths, lock_concerned
from weir_controlplane.dispatch.incarnations import identify
from weir_controlplane.dispatch.restructure import cut_to, reopen
from weir_controlplane.dispatch.work import CancelReason, Grant, Holding, Settled, SyncWork
from weir_controlplane.store.database import Database

TAKES_ON = ("starting", "serving")  # states in which a pod keeps what it was given


async def settle(database: Database, work: SyncWork) -> Settled:
    """Carries out a sync and says what the agent holds after it.

    Raises:
        ConflictError: a newer process or a later sync was seen: nothing was changed.
    """
    async with database.transaction() as session:
        with metrics.DISPATCH_SECONDS.time():
            result = await _settle(session, work)
    for event, count in (
        ("granted", len(result.grants)),
        ("adopted", len(result.adopted)),
        ("lost", len(result.lost)),
        ("released", result.released),
    ):
        metrics.LEASES.labels(event=event).inc(count)
    return result


async def _settle(session: AsyncSession, work: SyncWork) -> Settled:
    identity = await identify(session, work)
    now_s = identity.now_s
    me = identity.incarnation
    adopted: list[Grant] = []
    released: set[str] = set()
    if work.deaths:
        await lock_concerned(session, work.agent_id, work.deaths)
    if identity.first:
        adopted, released = await _adopt(session, work, me, now_s)
    pause_until = identity.pause_until
    if work.deaths:
        pause_until = await accept_deaths(session, work.agent_id, work.deaths, now_s) or pause_until
    rows = await leases.held_by(session, me)
    back = await leases.give_back(session, rows, work.returned)
    rows = [row for row in rows if row.id not in back]
    fresh = {item.chunk_id for item in adopted}
    refs = {ref.chunk_id: ref for ref in work.held}
    known = [
        row
        for row in rows
        if row.id in refs and (refs[row.id].attempt, refs[row.id].nonce) == (row.attempt, row.nonce)
    ]
    await leases.renew(session, known, refs)
    kept = {row.id for row in known} | fresh
    unreceived = [row for row in rows if row.id not in kept]
    grants, dropped = await _hand_out_again(session, work, me, unreceived, now_s)
    if work.wanted and work.state == "serving" and (pause_until is None or pause_until <= now_s):
        wanted = await _wanted(session, work)
        grants += await leases.hand_out(session, work, me, wanted, now_s)
    holds = {row.id: _holding(row) for row in known} | {
        item.chunk_id: Holding(
            batch_id=item.batch_id, attempt=item.attempt, nonce=item.nonce, solo=item.solo
        )
        for item in (*adopted, *grants)
    }
    return Settled(
        incarnation=me,
        paused_until=pause_until,
        now_s=now_s,
        grants=tuple(grants),
        adopted=tuple(adopted),
        lost=tuple(ref.chunk_id for ref in work.held if ref.chunk_id not in holds),
        cancel=tuple(_cancels([row for row in rows if row.id in kept], now_s)),
        deaths_accepted=tuple(death.death_id for death in work.deaths),
        holds=holds,
        released=len(released | back | dropped),
    )


async def _wanted(session: AsyncSession, work: SyncWork) -> Sequence[leases.ChunkRow]:
    """The chunks wanted that can be given now, none of more lines than the agent can store."""
    rows = await leases.open_chunks(session, work)
    most = work.most_lines
    if not most or all(row.lines <= most for row in rows):
        return rows
    await cut_to(session, [row.id for row in rows], most)
    return await leases.open_chunks(session, work)


def _place(row: leases.ChunkRow) -> tuple[str, int]:
    return (row.batch_id, row.position)


def _holding(row: leases.ChunkRow) -> Holding:
    return Holding(batch_id=row.batch_id, attempt=row.attempt, nonce=row.nonce, solo=row.solo)


async def _adopt(
    session: AsyncSession, work: SyncWork, me: int, now_s: float
) -> tuple[list[Grant], set[str]]:
    """The predecessor's leases as new attempts; what the process cannot take on is open again."""
    rows = await leases.held_by_predecessors(session, work.agent_id, me)
    grants: list[Grant] = []
    if work.state in TAKES_ON:
        grants = await leases.hand_out(session, work, me, sorted(rows, key=_place), now_s)
    rest = {row.id for row in rows} - {item.chunk_id for item in grants}
    await reopen(session, sorted(rest))
    return grants, rest


async def _hand_out_again(
    session: AsyncSession,
    work: SyncWork,
    me: int,
    rows: Sequence[leases.ChunkRow],
    now_s: float,
) -> tuple[list[Grant], set[str]]:
    """Leases whose reply was lost: new attempts, so that a reply that comes late is stale."""
    again: list[Grant] = []
    if work.state == "serving":
        useful = [row for row in rows if row.revoked_at is None and not leases.ends(row, now_s)]
        again = await leases.hand_out(session, work, me, sorted(useful, key=_place), now_s)
    rest = {row.id for row in rows} - {item.chunk_id for item in again}
    await reopen(session, sorted(rest))
    return again, rest


def _cancels(rows: Sequence[leases.ChunkRow], now_s: float) -> list[tuple[str, CancelReason]]:
    found: list[tuple[str, CancelReason]] = []
    for row in rows:
        if leases.ends(row, now_s):
            found.append((row.id, "expired" if row.status == "in_progress" else "cancelled"))
        elif row.revoked_at is not None:
            found.append((row.id, "suspended" if row.halted else "suspects"))
    return found
