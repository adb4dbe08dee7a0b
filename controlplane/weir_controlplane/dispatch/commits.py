"""Commits of chunks: one conditional update under a fenced lease, exactly once (§8.2, §8.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import exists, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.dispatch import metrics
from weir_controlplane.dispatch.deaths import clear_suspects
from weir_controlplane.dispatch.errors import LineMismatchError
from weir_controlplane.dispatch.restructure import Marked, marked_lines, part_of
from weir_controlplane.dispatch.splitting import split
from weir_controlplane.errors import InvalidRequestError
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database
from weir_controlplane.store.line_index import line_ranges, lines_of_ranges, unpack_lines
from weir_controlplane.store.models import Batch, Chunk, ChunkResult, Upload

CommitState = Literal["accepted", "stale", "gone"]
_COPIED = (
    *("storage_key", "size_bytes", "ranges", "completed_lines", "failed_lines"),
    *("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """What the holder of a lease asks for. ``ranges`` are closed pairs of line numbers."""

    chunk_id: str
    attempt: int
    nonce: str
    upload_id: str
    ranges: tuple[tuple[int, int], ...]
    final: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """The answer. ``more``: lines are open again. ``finished``: the batch has no chunk left.

    ``lines``: how many are committed by it.
    """

    state: CommitState
    batch_id: str | None = None
    more: bool = False
    finished: bool = False
    lines: int = 0


async def commit(database: Database, wish: Commit) -> Committed:
    """Commits the lines, or says why not; the same commit again is accepted again.

    Raises:
        LineMismatchError: the lines are not those of upload and chunk.
        InvalidRequestError: ``unknown_upload``, upload them (again) first.
    """
    async with database.transaction() as session:
        answer = await _commit(session, wish)
    metrics.COMMITS.labels(state=answer.state).inc()
    metrics.COMMITTED_LINES.inc(answer.lines)  # which a transaction that fails leaves uncommitted
    return answer


async def _commit(session: AsyncSession, wish: Commit) -> Committed:
    chunk = await _locked(session, wish.chunk_id)
    if chunk is None or chunk.state == "closed":
        return Committed(state="gone")
    if chunk.state == "done":
        return Committed(state=await _repeated(session, wish), batch_id=chunk.batch_id)
    if chunk.state != "leased" or (chunk.attempt, chunk.nonce) != (wish.attempt, wish.nonce):
        return Committed(state="stale", batch_id=chunk.batch_id)
    upload = await _upload(session, wish)
    lines = _checked_lines(wish, chunk, upload)
    marked = (await marked_lines(session, [chunk.batch_id])).get(chunk.batch_id, Marked())
    session.add(
        ChunkResult(
            chunk_id=chunk.id,
            batch_id=chunk.batch_id,
            upload_id=upload.id,
            attempt=wish.attempt,
            nonce=wish.nonce,
            committed_at=await _now(session),
            **{name: getattr(upload, name) for name in _COPIED},
        )
    )
    upload.committed = True
    more = await _close(session, chunk, lines, marked)
    await clear_suspects(session, chunk.batch_id, upload.ranges, _states(marked))
    await session.flush()
    finished = not more and await _is_finished(session, chunk.batch_id)
    return Committed(
        state="accepted",
        batch_id=chunk.batch_id,
        more=more,
        finished=finished,
        lines=len(lines),
    )


async def _locked(session: AsyncSession, chunk_id: str) -> Chunk | None:
    # The batch first, as winding up does: whoever ends a batch then closes its chunks.
    batch = select(Chunk.batch_id).where(Chunk.id == chunk_id).scalar_subquery()
    await session.execute(select(Batch.id).where(Batch.id == batch).with_for_update(read=True))
    statement = select(Chunk).where(Chunk.id == chunk_id)
    return (await session.execute(statement.with_for_update(key_share=True))).scalar_one_or_none()


async def _now(session: AsyncSession) -> float:
    return (await session.execute(select(db_now()))).scalar_one()


async def _repeated(session: AsyncSession, wish: Commit) -> CommitState:
    statement = select(ChunkResult.upload_id).where(
        ChunkResult.chunk_id == wish.chunk_id,
        ChunkResult.attempt == wish.attempt,
        ChunkResult.nonce == wish.nonce,
    )
    upload_id = (await session.execute(statement)).scalar_one_or_none()
    return "accepted" if upload_id == wish.upload_id else "stale"


async def _upload(session: AsyncSession, wish: Commit) -> Upload:
    statement = select(Upload).where(
        Upload.id == wish.upload_id,
        Upload.chunk_id == wish.chunk_id,
        Upload.attempt == wish.attempt,
        Upload.nonce == wish.nonce,
        Upload.stored,
        Upload.marked_at.is_(None),
    )
    upload = (await session.execute(statement.with_for_update())).scalar_one_or_none()
    if upload is None:
        raise InvalidRequestError(
            "upload_id: not an upload of this lease; send the results again",
            param="upload_id",
            code="unknown_upload",
        )
    return upload


def _checked_lines(wish: Commit, chunk: Chunk, upload: Upload) -> frozenset[int]:
    """The lines to commit: named, uploaded, of the chunk, and all of them when final.

    Raises:
        LineMismatchError: they are not.
    """
    span = sum(last - first + 1 for first, last in wish.ranges)
    if span > chunk.lines or any(first > last for first, last in wish.ranges):
        raise LineMismatchError("lines: more than the chunk has", param="lines")
    lines = lines_of_ranges(wish.ranges)
    if line_ranges(sorted(lines)) != upload.ranges:
        raise LineMismatchError("lines: not the lines of the upload", param="lines")
    own = {item.line for item in unpack_lines(chunk.line_index)}
    if not own.issuperset(lines):
        raise LineMismatchError("lines: not all are in this chunk", param="lines")
    if wish.final and len(lines) != len(own):
        raise LineMismatchError(
            f"lines: final, yet {len(own) - len(lines)} lines of the chunk are missing",
            param="lines",
        )
    return frozenset(lines)


async def _close(session: AsyncSession, chunk: Chunk, done: frozenset[int], marked: Marked) -> bool:
    """Closes the chunk with its lines and makes new ones of the rest; whether any can run."""
    parts = split(
        unpack_lines(chunk.line_index), done=done, suspects=marked.suspects, failed=marked.failed
    )
    ends = await _batch_ends(session, chunk.batch_id)
    state = "closed" if ends else "open"
    for lines, solo in ((parts.rest, False), (parts.alone, True)):
        if lines:
            session.add(part_of(chunk, lines, solo=solo, state=state))
    chunk.state = "done"
    chunk.lease_until = None
    chunk.revoked_at = None
    chunk.lines_done = len(done)
    return not ends and bool(parts.rest or parts.alone)


async def _batch_ends(session: AsyncSession, batch_id: str) -> bool:
    statement = select(Batch.status, Batch.closing_as).where(Batch.id == batch_id)
    row = (await session.execute(statement)).one()
    return bool(row.status != "in_progress" or row.closing_as is not None)


async def _is_finished(session: AsyncSession, batch_id: str) -> bool:
    left = exists().where(Chunk.batch_id == batch_id, Chunk.state.in_(("open", "leased")))
    return not (await session.execute(select(left))).scalar_one()


def _states(marked: Marked) -> dict[int, str]:
    return dict.fromkeys(marked.suspects, "suspect") | dict.fromkeys(marked.failed, "failed")


async def sweepable(session: AsyncSession, *, stale_after_s: float, limit: int) -> Sequence[Any]:
    """Marks uploads that no commit can take any more; those marked (id, key), longest ago first.

    Not committed, and either of a lease that is over or never finished; ``stale_after_s`` old, so
    that no body is still on its way.
    """
    current = exists().where(
        Chunk.id == Upload.chunk_id,
        Chunk.state == "leased",
        Chunk.attempt == Upload.attempt,
        Chunk.nonce == Upload.nonce,
    )
    old = (
        select(Upload.id)
        .where(
            Upload.committed.is_(False),
            Upload.marked_at.is_(None),  # those that cannot be removed must not fill the limit
            Upload.created_at < db_now() - stale_after_s,
            ~current,
        )
        .limit(limit)
    )
    await session.execute(
        update(Upload)
        .where(Upload.id.in_(old), Upload.committed.is_(False), Upload.marked_at.is_(None))
        .values(marked_at=db_now())
        .execution_options(synchronize_session=False)
    )
    marked = await session.execute(
        select(Upload.id, Upload.storage_key)
        .where(Upload.marked_at.is_not(None))
        .order_by(Upload.marked_at, Upload.id)
        .limit(limit)
    )
    return marked.all()
