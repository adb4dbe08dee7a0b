"""Results of chunks on their way in: a row, then an object under a fenced key (§8.2).

The row comes first, so that whatever ends halfway is found by the sweeper.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite

from weir_controlplane.dispatch import metrics
from weir_controlplane.dispatch.bounds import MAX_RESULT_LINE_BYTES
from weir_controlplane.dispatch.errors import LineMismatchError, StaleLeaseError
from weir_controlplane.dispatch.result_lines import ResultLines
from weir_controlplane.errors import InvalidRequestError, PayloadTooLargeError
from weir_controlplane.files.storage import Storage
from weir_controlplane.ids import new_id
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database
from weir_controlplane.store.line_index import unpack_lines
from weir_controlplane.store.models import Chunk, Upload

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultUpload:
    """What the uploader says of its body. ``lines``: how many there are in it."""

    chunk_id: str
    attempt: int
    nonce: str
    sha256: str
    lines: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    upload_id: str
    key: str
    stored: bool
    expected: frozenset[int]


async def store_result(
    database: Database, storage: Storage, upload: ResultUpload, body: AsyncIterator[bytes]
) -> str:
    """The id of the upload, the same for the same upload again.

    Raises:
        StaleLeaseError: the lease is not the current one.
        InvalidRequestError: ``hash_mismatch``, or no result lines.
        LineMismatchError: lines that are not of the chunk.
        PayloadTooLargeError: over the bound.
        StorageFullError: the file store has no room.
    """
    if not _SHA256.fullmatch(upload.sha256):
        raise InvalidRequestError(
            "sha256: give 64 lower-case hex digits", param="sha256", code="invalid_value"
        )
    place = await _claim(database, upload)
    pieces = _bounded(body, len(place.expected) * MAX_RESULT_LINE_BYTES)
    if place.stored:
        async for _ in pieces:
            pass  # who is answered while it sends may not see the answer, and sends it all again
        return place.upload_id
    lines = ResultLines(expected=place.expected)
    async with storage.writer(place.key) as writer:
        async for block in pieces:
            lines.feed(block)
            await writer.write(block)
        lines.end()
        await writer.flush()
        if writer.sha256 != upload.sha256:
            raise InvalidRequestError(
                "sha256: the body has another hash; send it again",
                param="sha256",
                code="hash_mismatch",
            )
        if upload.lines is not None and upload.lines != len(lines.lines):
            raise LineMismatchError(f"lines: the body has {len(lines.lines)}", param="lines")
    await _publish(database, upload, place, lines, writer.bytes)
    metrics.RESULT_BYTES.inc(writer.bytes)
    return place.upload_id


async def _bounded(body: AsyncIterator[bytes], bound_bytes: int) -> AsyncIterator[bytes]:
    """The body, piece by piece.

    Raises:
        PayloadTooLargeError: over the bound.
    """
    size_bytes = 0
    async for block in body:
        size_bytes += len(block)
        if size_bytes > bound_bytes:
            raise PayloadTooLargeError(f"the result of this chunk is over {bound_bytes} bytes")
        yield block


async def _claim(database: Database, upload: ResultUpload) -> _Place:
    async with database.transaction() as session:
        chunk = (
            await session.execute(
                select(Chunk.batch_id, Chunk.line_index).where(
                    Chunk.id == upload.chunk_id,
                    Chunk.state == "leased",
                    Chunk.attempt == upload.attempt,
                    Chunk.nonce == upload.nonce,
                )
            )
        ).one_or_none()
        if chunk is None:
            raise StaleLeaseError(upload.chunk_id)
        fence = {
            "chunk_id": upload.chunk_id,
            "attempt": upload.attempt,
            "nonce": upload.nonce,
            "sha256": upload.sha256,
        }
        zero = dict.fromkeys(
            (
                *("size_bytes", "completed_lines", "failed_lines"),
                *("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"),
            ),
            0,
        )
        postgres = session.get_bind().dialect.name == "postgresql"
        insert = postgresql.insert if postgres else sqlite.insert
        await session.execute(
            insert(Upload)
            .values(
                id=new_id("upload_"),
                batch_id=chunk.batch_id,
                storage_key=f"results/{chunk.batch_id}/{upload.chunk_id}/"
                f"{upload.attempt}-{upload.nonce}-{upload.sha256}.ndjson",
                ranges=[],
                created_at=db_now(),
                stored=False,
                committed=False,
                **fence,
                **zero,
            )
            .on_conflict_do_nothing(index_elements=list(fence))
        )
        row = (
            await session.execute(
                select(Upload.id, Upload.storage_key, Upload.stored, Upload.marked_at).filter_by(
                    **fence
                )
            )
        ).one()
    if row.marked_at is not None:
        raise StaleLeaseError(upload.chunk_id)
    return _Place(
        upload_id=row.id,
        key=row.storage_key,
        stored=row.stored,
        expected=frozenset(item.line for item in unpack_lines(chunk.line_index)),
    )


async def _publish(
    database: Database, upload: ResultUpload, place: _Place, lines: ResultLines, size_bytes: int
) -> None:
    async with database.transaction() as session:
        done = await session.execute(
            update(Upload)
            .where(Upload.id == place.upload_id, Upload.marked_at.is_(None))
            .values(
                stored=True,
                size_bytes=size_bytes,
                ranges=lines.ranges,
                completed_lines=lines.completed_lines,
                failed_lines=lines.failed_lines,
                **lines.tokens,
            )
            .returning(Upload.id)
        )
        if done.scalar_one_or_none() is None:
            raise StaleLeaseError(upload.chunk_id)
