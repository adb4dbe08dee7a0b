"""Prometheus metrics of batches, read from the database. Labels are ids and states."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import Gauge
from sqlalchemy import case, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.batches.progress import Progress, progress_of
from weir_controlplane.batches.states import LIVE, TERMINAL
from weir_controlplane.levels import Levels
from weir_controlplane.services import Services
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.models import Batch, ChunkResult

SAMPLE_EVERY_S = 5.0
MAX_SHOWN = 200  # batches with a series of their own: those whose window ends first
ENDED_WITHIN_S = 3600.0
ENDED_EVERY_S = 60.0  # every batch that ever ended is looked at

BATCHES = Gauge("weir_batches", "Unfinished batches, by status; suspended ones apart.", ["status"])
ENDED = Gauge("weir_batches_ended", "Batches that ended in the last hour, by status.", ["status"])
LINES = Gauge(
    "weir_batch_lines", "Lines of a running batch: total, completed, failed.", ["batch", "state"]
)
WINDOW_END = Gauge(
    "weir_batch_window_end_timestamp_seconds", "When a running batch's window ends.", ["batch"]
)
IDLE = Gauge(
    "weir_batch_idle_seconds",
    "Time since a running batch's last committed line, or its start; suspended ones left out.",
    ["batch"],
)
_OF_A_BATCH = (LINES, WINDOW_END, IDLE)
LEVELS = Levels(BATCHES, ENDED, *_OF_A_BATCH)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What is shown of one running batch. ``idle_s`` None: suspended."""

    batch_id: str
    total_lines: int
    progress: Progress
    window_end_at: float
    idle_s: float | None


async def watch_batches_forever(services: Services) -> None:
    """Keeps the gauges current until cancelled."""
    ended: Counter[str] = Counter()
    counted_s = float("-inf")
    while True:
        async with services.database.read() as session:
            live = await _live(session)
            samples = await running(session)
            if time.monotonic() - counted_s >= ENDED_EVERY_S:
                ended, counted_s = await _ended(session), time.monotonic()
        show(samples, live=live, ended=ended)
        await asyncio.sleep(SAMPLE_EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311


async def _live(session: AsyncSession) -> Counter[str]:
    """Unfinished batches by status."""
    status = case((Batch.suspended_at.is_not(None), "suspended"), else_=Batch.status)
    live = await session.execute(
        select(status, func.count()).where(Batch.status.in_(LIVE)).group_by(status)
    )
    return Counter({name: int(count) for name, count in live})


async def _ended(session: AsyncSession) -> Counter[str]:
    """Batches that ended of late, by status."""
    ended_at = func.coalesce(
        Batch.completed_at, Batch.failed_at, Batch.expired_at, Batch.cancelled_at
    )
    ended = await session.execute(
        select(Batch.status, func.count())
        .where(Batch.status.in_(TERMINAL), ended_at > db_now() - ENDED_WITHIN_S)
        .group_by(Batch.status)
    )
    return Counter({name: int(count) for name, count in ended})


async def running(session: AsyncSession) -> list[Sample]:
    """The running batches whose windows end first, `MAX_SHOWN` at most."""
    rows = (
        await session.execute(
            select(Batch, db_now())
            .where(Batch.status == "in_progress")
            .order_by(Batch.expires_at)
            .limit(MAX_SHOWN)
        )
    ).all()
    batches: Sequence[Batch] = [row[0] for row in rows]
    progress = await progress_of(session, batches)
    committed = await session.execute(
        select(ChunkResult.batch_id, func.max(ChunkResult.committed_at))
        .where(ChunkResult.batch_id.in_([batch.id for batch in batches]))
        .group_by(ChunkResult.batch_id)
    )
    last = {batch_id: float(at) for batch_id, at in committed}
    return [
        Sample(
            batch_id=batch.id,
            total_lines=batch.total_lines,
            progress=progress[batch.id],
            window_end_at=batch.expires_at,
            idle_s=None
            if batch.suspended_at is not None
            else max(0.0, now_s - last.get(batch.id, batch.in_progress_at or batch.created_at)),
        )
        for batch, now_s in rows
    ]


def show(samples: Sequence[Sample], *, live: Counter[str], ended: Counter[str]) -> None:
    """Sets the gauges; batches that run no longer lose theirs."""
    for status in (*LIVE, "suspended"):
        BATCHES.labels(status=status).set(live[status])
    for status in TERMINAL:
        ENDED.labels(status=status).set(ended[status])
    for gauge in _OF_A_BATCH:
        gauge.clear()
    for sample in samples:
        for state, lines in (
            ("total", sample.total_lines),
            ("completed", sample.progress.completed_lines),
            ("failed", sample.progress.failed_lines),
        ):
            LINES.labels(batch=sample.batch_id, state=state).set(lines)
        WINDOW_END.labels(batch=sample.batch_id).set(sample.window_end_at)
        if sample.idle_s is not None:
            IDLE.labels(batch=sample.batch_id).set(sample.idle_s)
    LEVELS.told()
