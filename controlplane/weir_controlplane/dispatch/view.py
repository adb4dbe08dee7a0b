"""What a replica knows of the queue, in memory: plans are made here, the database carries them out.

Refreshed every few seconds and after hints. A plan from a stale view costs a lease that is not
granted, nothing else: every lease is a conditional update.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.dispatch.bounds import SLICE_CHUNKS
from weir_controlplane.dispatch.order import Waiting, in_order
from weir_controlplane.dispatch.placement import OpenChunk, Place, Room, next_chunk
from weir_controlplane.dispatch.work import CancelReason, Grant
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database, clock_s
from weir_controlplane.store.models import Batch, Chunk
from weir_controlplane.store.tenancy import Bindings, read_bindings

MAX_OPEN_IN_VIEW = 4096  # a batch's chunks beyond these are loaded when these are leased


@dataclass(frozen=True, kw_only=True, slots=True)
class Out:
    """A leased chunk. ``holder`` is an incarnation."""

    chunk_id: str
    place: Place
    holder: int
    tokens: int
    solo: bool
    revoked: bool
    leased_at: float


@dataclass(kw_only=True, slots=True)
class BatchView:
    """A running batch. ``open`` by place, those that run alone in ``solo``."""

    batch_id: str
    tenant_id: str
    model: str
    revision: str | None
    service: str | None
    created_at: float
    expires_at: float
    waiting_since: float
    priority: int = 0
    open_lines: int = 0
    open_count: int = 0
    open: list[OpenChunk] = field(default_factory=list)
    solo: list[OpenChunk] = field(default_factory=list)
    out: dict[str, Out] = field(default_factory=dict)

    def waiting(self) -> Waiting:
        """Its place in the queue."""
        return Waiting(
            batch_id=self.batch_id,
            tenant_id=self.tenant_id,
            created_at=self.created_at,
            expires_at=self.expires_at,
            waiting_since=self.waiting_since,
            priority=self.priority,
        )

    def fits(self, pod: Pod, bindings: Bindings) -> bool:
        """Whether the pod serves what the batch is pinned to, and its tenant may use it."""
        revision = pod.models.get(self.model)
        return (
            revision is not None
            and self.revision in {None, revision}
            and self.service in {None, pod.service}
            and bindings.may_use(self.tenant_id, pod.service)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """A pod that asks for work. ``models``: revision by name. ``alone``: it takes suspects."""

    incarnation: int
    service: str
    models: Mapping[str, str]
    room: Room
    alone: bool
    holds_solo: bool


class WorkView:
    """The queue as this replica last saw it."""

    def __init__(self, *, default_tenant: str | None = None) -> None:
        self.batches: dict[str, BatchView] = {}
        self.bindings = Bindings()
        self.ending: dict[str, CancelReason] = {}  # by batch; those that are suspended too
        self.revoked: set[str] = set()
        self._last: dict[tuple[int, str], Place] = {}
        self._default_tenant = default_tenant

    async def refresh(self, database: Database) -> float:
        """Reads the queue anew; the database's time at that moment."""
        async with database.read() as session:
            now_s = await clock_s(session)
            batches = await _batches(session)
            counts = await _counts(session, batches)
            await self._read_out(session, batches)
            self.ending = await _ending(session)
            self.bindings = await read_bindings(session, self._default_tenant)
            for batch in batches.values():
                before = self.batches.get(batch.batch_id)
                batch.open_count, batch.open_lines = counts.get(batch.batch_id, (0, 0))
                if before is not None and _is_current(before, batch.open_count):
                    batch.open, batch.solo = before.open, before.solo
                elif batch.open_count:
                    await _read_open(session, batch)
                    await asyncio.sleep(0)
        self.batches = batches
        self._last = {key: place for key, place in self._last.items() if key[1] in batches}
        return now_s

    async def _read_out(self, session: AsyncSession, batches: Mapping[str, BatchView]) -> None:
        columns: tuple[Any, ...] = (
            *(Chunk.id, Chunk.batch_id, Chunk.position, Chunk.leased_by, Chunk.tokens),
            *(Chunk.solo, Chunk.revoked_at, Chunk.leased_at),
        )
        rows = await session.execute(select(*columns).where(Chunk.state == "leased"))
        self.revoked = set()
        for row in rows:
            if row.revoked_at is not None:
                self.revoked.add(row.id)
            if row.batch_id in batches:
                batches[row.batch_id].out[row.id] = Out(
                    chunk_id=row.id,
                    place=(row.position, row.id),
                    holder=row.leased_by,
                    tokens=row.tokens,
                    solo=row.solo,
                    revoked=row.revoked_at is not None,
                    leased_at=row.leased_at or 0.0,
                )

    def has_work(self, pod: Pod) -> bool:
        """Whether there is anything that the pod could get now."""
        return any(
            (batch.open or batch.solo) and batch.fits(pod, self.bindings)
            for batch in self.batches.values()
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all waits."""
        return not any(batch.open or batch.solo for batch in self.batches.values())

    @property
    def has_suspects(self) -> bool:
        """Whether chunks of suspects wait."""
        return any(batch.solo for batch in self.batches.values())

    def plan(self, pod: Pod, now_s: float) -> list[str]:
        """Chunks to lease to the pod, in order; they leave the view at once.

        A pod that takes suspects gets nothing else while any wait, and one chunk of them when it
        holds nothing (§8.5).
        """
        if pod.holds_solo:
            return []
        fitting = [batch for batch in self.batches.values() if batch.fits(pod, self.bindings)]
        if pod.alone and any(batch.solo for batch in fitting):
            return self._plan_solo(pod, fitting)
        chosen: list[str] = []
        room = pod.room
        tokens = self._leased_tokens()
        while True:
            taken, room = self._plan_slice(pod, fitting, room, tokens, now_s)
            if not taken:
                return chosen
            chosen += [chunk.chunk_id for chunk in taken]

    def _plan_solo(self, pod: Pod, fitting: Iterable[BatchView]) -> list[str]:
        if not pod.room.idle or self._solo_out(fitting):
            return []
        for batch in fitting:
            for chunk in batch.solo:
                if pod.room.fits(chunk):
                    batch.solo.remove(chunk)
                    return [chunk.chunk_id]
        return []

    @staticmethod
    def _solo_out(fitting: Iterable[BatchView]) -> bool:
        return any(item.solo for batch in fitting for item in batch.out.values())

    def _plan_slice(
        self,
        pod: Pod,
        fitting: Iterable[BatchView],
        room: Room,
        tokens: Counter[str],
        now_s: float,
    ) -> tuple[list[OpenChunk], Room]:
        queue = in_order(
            (batch.waiting() for batch in fitting if batch.open), now_s, leased_tokens=tokens
        )
        for waiting in queue:
            batch = self.batches[waiting.batch_id]
            taken: list[OpenChunk] = []
            others = sorted(
                item.place for item in batch.out.values() if item.holder != pod.incarnation
            )
            while len(taken) < SLICE_CHUNKS:
                chunk = self._next(pod.incarnation, batch, others)
                if chunk is None or not room.fits(chunk):
                    break
                self._take(pod.incarnation, batch, chunk, now_s)
                taken.append(chunk)
                room = room.less(chunk)
                tokens[batch.tenant_id] += chunk.tokens
            if taken:
                return taken, room
        return [], room

    def _next(
        self, incarnation: int, batch: BatchView, others: Sequence[Place]
    ) -> OpenChunk | None:
        own = self._last.get((incarnation, batch.batch_id))
        if own is None:
            mine = [item for item in batch.out.values() if item.holder == incarnation]
            own = max(mine, key=lambda item: item.leased_at).place if mine else None
        return next_chunk(batch.open, own=own, others=others)

    def _take(self, incarnation: int, batch: BatchView, chunk: OpenChunk, now_s: float) -> None:
        batch.open.remove(chunk)
        batch.waiting_since = now_s
        self._last[incarnation, batch.batch_id] = chunk.place

    def granted(self, incarnation: int, grants: Iterable[Grant], now_s: float) -> None:
        """Notes leases that the database has granted."""
        for grant in grants:
            batch = self.batches.get(grant.batch_id)
            if batch is not None:
                batch.out[grant.chunk_id] = Out(
                    chunk_id=grant.chunk_id,
                    place=(grant.position, grant.chunk_id),
                    holder=incarnation,
                    tokens=grant.tokens,
                    solo=grant.solo,
                    revoked=False,
                    leased_at=now_s,
                )

    def committed(self, chunk_id: str, batch_id: str | None) -> None:
        """Notes that a chunk is not out any more."""
        batch = self.batches.get(batch_id or "")
        if batch is not None:
            batch.out.pop(chunk_id, None)

    def remaining_lines(self, batch_id: str) -> int:
        """Lines of the batch that nobody has, as far as this replica knows."""
        batch = self.batches.get(batch_id)
        return 0 if batch is None else sum(chunk.lines for chunk in (*batch.open, *batch.solo))

    def cancels(self, holds: Mapping[str, str]) -> list[tuple[str, CancelReason]]:
        """Those of the chunks held (batch by chunk) that must stop."""
        found: list[tuple[str, CancelReason]] = []
        for chunk_id, batch_id in holds.items():
            if batch_id in self.ending:
                found.append((chunk_id, self.ending[batch_id]))
            elif chunk_id in self.revoked:
                found.append((chunk_id, "suspects"))
        return found

    def _leased_tokens(self) -> Counter[str]:
        tokens: Counter[str] = Counter()
        for batch in self.batches.values():
            tokens[batch.tenant_id] += sum(item.tokens for item in batch.out.values())
        return tokens


def _is_current(before: BatchView, open_count: int) -> bool:
    known = len(before.open) + len(before.solo)
    return known == open_count or (open_count > MAX_OPEN_IN_VIEW and known > MAX_OPEN_IN_VIEW // 2)


async def _batches(session: AsyncSession) -> dict[str, BatchView]:
    columns: tuple[Any, ...] = (
        *(Batch.id, Batch.tenant_id, Batch.model, Batch.revision, Batch.service),
        *(Batch.created_at, Batch.in_progress_at, Batch.expires_at, Batch.priority),
    )
    rows = await session.execute(
        select(*columns).where(
            Batch.status == "in_progress",
            Batch.closing_as.is_(None),
            Batch.suspended_at.is_(None),
            Batch.expires_at > db_now(),
            Batch.model.is_not(None),
        )
    )
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
        )
        for row in rows
    }


async def _counts(
    session: AsyncSession, batches: Mapping[str, BatchView]
) -> dict[str, tuple[int, int]]:
    """Open chunks and lines by batch; moves ``waiting_since`` on to the last lease."""
    if not batches:
        return {}
    last = await session.execute(
        select(Chunk.batch_id, func.max(Chunk.leased_at))
        .where(Chunk.batch_id.in_(batches), Chunk.leased_at.is_not(None))
        .group_by(Chunk.batch_id)
    )
    for batch_id, leased_at in last:
        batch = batches[batch_id]
        batch.waiting_since = max(batch.waiting_since, leased_at or 0.0)
    rows = await session.execute(
        select(Chunk.batch_id, func.count(), func.sum(Chunk.lines))
        .where(Chunk.batch_id.in_(batches), Chunk.state == "open")
        .group_by(Chunk.batch_id)
    )
    return {batch_id: (int(count), int(lines)) for batch_id, count, lines in rows}


async def _read_open(session: AsyncSession, batch: BatchView) -> None:
    rows = await session.execute(
        select(Chunk.id, Chunk.position, Chunk.lines, Chunk.tokens, Chunk.solo)
        .where(Chunk.batch_id == batch.batch_id, Chunk.state == "open")
        .order_by(Chunk.position, Chunk.id)
        .limit(MAX_OPEN_IN_VIEW)
    )
    for row in rows:
        chunk = OpenChunk(
            chunk_id=row.id, position=row.position, lines=row.lines, tokens=row.tokens
        )
        insort(batch.solo if row.solo else batch.open, chunk, key=lambda item: item.place)


_ends = Batch.closing_as.is_not(None) | (Batch.expires_at <= db_now())


async def _ending(session: AsyncSession) -> dict[str, CancelReason]:
    rows = await session.execute(
        select(Batch.id, Batch.status, _ends.label("ends")).where(
            or_(
                Batch.status == "cancelling",
                (Batch.status == "in_progress") & or_(_ends, Batch.suspended_at.is_not(None)),
            )
        )
    )
    return {
        row.id: "cancelled"
        if row.status == "cancelling"
        else ("expired" if row.ends else "suspended")
        for row in rows
    }
