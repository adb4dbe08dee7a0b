"""How far batches are: sums over committed lines, never over lines in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.batches.states import TERMINAL
from weir_controlplane.store.models import Batch, ChunkResult, Suspect


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Committed lines of a batch."""

    completed_lines: int = 0
    failed_lines: int = 0


async def progress_of(session: AsyncSession, batches: Sequence[Batch]) -> dict[str, Progress]:
    """The progress of each batch, by id."""
    ended = {
        batch.id: Progress(completed_lines=batch.completed_lines, failed_lines=batch.failed_lines)
        for batch in batches
        if batch.status in TERMINAL
    }
    live = [batch.id for batch in batches if batch.id not in ended]
    if not live:
        return ended
    sums = await session.execute(
        select(
            ChunkResult.batch_id,
            func.sum(ChunkResult.completed_lines),
            func.sum(ChunkResult.failed_lines),
        )
        .where(ChunkResult.batch_id.in_(live))
        .group_by(ChunkResult.batch_id)
    )
    committed = {batch_id: (int(done), int(failed)) for batch_id, done, failed in sums}
    poisoned = await session.execute(
        select(Suspect.batch_id, func.count())
        .where(Suspect.batch_id.in_(live), Suspect.state == "failed")
        .group_by(Suspect.batch_id)
    )
    dead = {batch_id: int(lines) for batch_id, lines in poisoned}
    for batch_id in live:
        done, failed = committed.get(batch_id, (0, 0))
        ended[batch_id] = Progress(
            completed_lines=done, failed_lines=failed + dead.get(batch_id, 0)
        )
    return ended
