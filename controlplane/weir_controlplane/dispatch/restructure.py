"""Chunks cut: along their suspects (§8.5), and to what a pod can store the results of (§8.3).

Works inside the caller's transaction; but for `close_chunks`, with the chunk rows locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.dispatch.splitting import split
from weir_controlplane.ids import new_id
from weir_controlplane.store.line_index import IndexedLine, pack_lines, unpack_lines
from weir_controlplane.store.models import Chunk, Suspect


@dataclass(frozen=True, kw_only=True, slots=True)
class Marked:
    """The lines of a batch that are suspected or have failed."""

    suspects: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()


async def marked_lines(session: AsyncSession, batches: Iterable[str]) -> dict[str, Marked]:
    """Suspected and failed lines, by batch; batches without any are left out."""
    rows = await session.execute(
        select(Suspect.batch_id, Suspect.line, Suspect.state).where(
            Suspect.batch_id.in_(set(batches)), Suspect.state.in_(("suspect", "failed"))
        )
    )
    found: dict[str, tuple[set[int], set[int]]] = {}
    for batch, line, state in rows:
        found.setdefault(batch, (set(), set()))[state == "failed"].add(line)
    return {
        batch: Marked(suspects=frozenset(suspects), failed=frozenset(failed))
        for batch, (suspects, failed) in found.items()
    }


async def cut_open_chunks(session: AsyncSession, chunk_ids: Sequence[str]) -> None:
    """Cuts those of the chunks that are open and hold suspected or failed lines."""
    if not chunk_ids:
        return
    batches = (
        await session.execute(select(Chunk.batch_id).where(Chunk.id.in_(chunk_ids)).distinct())
    ).scalars()
    marked = await marked_lines(session, batches)
    if not marked:
        return
    chunks = (
        await session.execute(
            select(Chunk)
            .where(Chunk.id.in_(chunk_ids), Chunk.state == "open", Chunk.batch_id.in_(marked))
            .order_by(Chunk.id)
            .with_for_update(key_share=True)
            .execution_options(populate_existing=True)
        )
    ).scalars()
    for chunk in chunks:
        _cut(session, chunk, marked)
    await session.flush()


async def cut_to(session: AsyncSession, chunk_ids: Iterable[str], most_lines: int) -> None:
    """Leaves the open chunks, locked by the caller, so many lines; the others are new chunks."""
    chunks = await session.execute(
        select(Chunk)
        .where(Chunk.id.in_(chunk_ids), Chunk.state == "open", Chunk.lines > most_lines)
        .order_by(Chunk.id)
        .execution_options(populate_existing=True)
    )
    for chunk in chunks.scalars():
        lines = unpack_lines(chunk.line_index)
        session.add(part_of(chunk, lines[most_lines:], solo=chunk.solo))
        _resize(chunk, lines[:most_lines], solo=chunk.solo)
    await session.flush()


def _cut(session: AsyncSession, chunk: Chunk, marked: Mapping[str, Marked]) -> None:
    lines = marked[chunk.batch_id]
    parts = split(unpack_lines(chunk.line_index), suspects=lines.suspects, failed=lines.failed)
    chunk.revoked_at = None
    if parts.rest:
        _resize(chunk, parts.rest, solo=False)
        if parts.alone:
            session.add(part_of(chunk, parts.alone, solo=True))
    elif parts.alone:
        _resize(chunk, parts.alone, solo=True)
    else:
        chunk.state = "closed"


def _resize(chunk: Chunk, lines: Sequence[IndexedLine], *, solo: bool) -> None:
    chunk.solo = solo
    if len(lines) != chunk.lines:
        for name, value in _sizes(lines).items():
            setattr(chunk, name, value)


def _sizes(lines: Sequence[IndexedLine]) -> dict[str, int | bytes]:
    return {
        "lines": len(lines),
        "tokens": sum(item.tokens for item in lines),
        "size_bytes": sum(item.length_bytes for item in lines),
        "line_index": pack_lines(lines),
    }


def part_of(
    chunk: Chunk, lines: Sequence[IndexedLine], *, solo: bool, state: str = "open"
) -> Chunk:
    """A new chunk of some of the lines of ``chunk``, at the same place."""
    return Chunk(
        id=new_id("chunk_"),
        batch_id=chunk.batch_id,
        parent_id=chunk.id,
        position=chunk.position,
        state=state,
        solo=solo,
        prefix_group=chunk.prefix_group,
        density=chunk.density,
        line_hashes=chunk.line_hashes,
        **_sizes(lines),
    )


async def reopen(session: AsyncSession, chunk_ids: Sequence[str]) -> None:
    """Takes chunks, locked by the caller, from their holder and deals them out anew."""
    if not chunk_ids:
        return
    await session.execute(
        update(Chunk)
        .where(Chunk.id.in_(chunk_ids), Chunk.state == "leased")
        .values(
            state="open",
            nonce=None,
            leased_by=None,
            leased_sequence=None,
            lease_until=None,
            revoked_at=None,
            lines_done=0,
        )
    )
    await cut_open_chunks(session, chunk_ids)


async def close_chunks(session: AsyncSession, which: ColumnElement[bool]) -> None:
    """Closes those of these chunks that are open or leased: they take no commit any more.

    Locks them in the order of their ids first: others wait for several chunks at once too.
    """
    live = which & Chunk.state.in_(("open", "leased"))
    locked = select(Chunk.id).where(live).order_by(Chunk.id).with_for_update(key_share=True)
    await session.execute(locked)
    # Not by ids: there may be more of them than a statement takes parameters.
    await session.execute(
        update(Chunk)
        .where(live)
        .values(state="closed", leased_by=None, lease_until=None, nonce=None)
        .execution_options(synchronize_session=False)
    )
