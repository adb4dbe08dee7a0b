"""Which of the lines that an agent names with a death can have been in its engine (§8.5).

An agent is believed what it held, and no more: who names the lines of others would have them fail.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import and_, select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.dispatch.poison import Line
from weir_controlplane.dispatch.work import ReportedDeath
from weir_controlplane.store.fleet_models import Incarnation
from weir_controlplane.store.line_index import lines_of_ranges, unpack_lines
from weir_controlplane.store.models import Chunk, ChunkResult


async def suspected(session: AsyncSession, agent_id: str, death: ReportedDeath) -> list[Line]:
    """The resident lines that are of the chunk named with them, and have no result.

    A chunk is another's where somebody else holds its lease in the attempt named. What is answered
    cannot be a suspect, in whichever chunk it was: the agent may tell of a death minutes after its
    leases ran out.
    """
    named = {chunk for chunk, _, _ in death.resident}
    own = select(Incarnation.id).where(Incarnation.agent_id == agent_id)
    holders = set((await session.execute(own)).scalars())
    rows = await session.execute(
        select(Chunk.id, Chunk.batch_id, Chunk.attempt, Chunk.state, Chunk.leased_by).where(
            Chunk.id.in_(named)
        )
    )
    chunks = {row.id: row for row in rows}
    lines = await _lines(session, named)
    answered = await _answered(session, {row.batch_id for row in chunks.values()})
    found: list[Line] = []
    for chunk_id, attempt, line in death.resident:
        row = chunks.get(chunk_id)
        if row is None or attempt > row.attempt or line not in lines[chunk_id]:
            continue
        held_now = row.state == "leased" and attempt == row.attempt
        if (held_now and row.leased_by not in holders) or line in answered[row.batch_id]:
            continue
        found.append((row.batch_id, line))
    return found


async def _lines(session: AsyncSession, chunks: Collection[str]) -> dict[str, set[int]]:
    """The lines that each of these chunks had, be they in others by now that were cut from it."""
    tree = (
        select(Chunk.id.label("root"), Chunk.id, Chunk.batch_id)
        .where(Chunk.id.in_(chunks))
        .cte(recursive=True)
    )
    parts = select(tree.c.root, Chunk.id, Chunk.batch_id).join(
        tree,  # by batch too: that has an index
        and_(Chunk.batch_id == tree.c.batch_id, Chunk.parent_id == tree.c.id),
    )
    tree = tree.union_all(parts)
    rows = await session.execute(
        select(tree.c.root, Chunk.line_index).join(Chunk, Chunk.id == tree.c.id)
    )
    lines: dict[str, set[int]] = {}
    for root, index in rows:
        lines.setdefault(root, set()).update(item.line for item in unpack_lines(index))
    return lines


async def _answered(session: AsyncSession, batches: Collection[str]) -> dict[str, set[int]]:
    rows = await session.execute(
        select(ChunkResult.batch_id, ChunkResult.ranges).where(ChunkResult.batch_id.in_(batches))
    )
    answered: dict[str, set[int]] = {batch: set() for batch in batches}
    for batch, ranges in rows:
        answered[batch].update(lines_of_ranges(ranges))
    return answered
