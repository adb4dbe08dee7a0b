"""Input lines of a chunk for its holder: bounded, ranged reads of the input file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select, update

from weir_controlplane.dispatch.bounds import MAX_FETCH_BYTES, MAX_FETCH_LINES
from weir_controlplane.dispatch.errors import StaleLeaseError
from weir_controlplane.errors import MissingObjectError, WeirError
from weir_controlplane.files.storage import Storage
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database
from weir_controlplane.store.line_index import IndexedLine, hash_of, unpack_hashes, unpack_lines
from weir_controlplane.store.models import Batch, Chunk, File


async def fetch_lines(  # noqa: PLR0913 - the call's parameters
    database: Database,
    storage: Storage,
    *,
    chunk_id: str,
    attempt: int,
    nonce: str,
    after: int,
    limit: int,
) -> bytes:
    """NDJSON of at most ``limit`` lines and 8 MiB of the chunk with ``line > after``; may be empty.

    Raises:
        StaleLeaseError: the lease is not the current one.
        MissingObjectError: the store says that it lacks the input or the end of it, or gives back
            other lines; whoever works on batches will look whether that stays so, and none of its
            chunks is leased meanwhile.
    """
    async with database.read() as session:
        statement = (
            select(
                Chunk.line_index, Chunk.line_hashes, Chunk.batch_id, File.storage_key, File.sha256
            )
            .join(Batch, Batch.id == Chunk.batch_id)
            .join(File, File.id == Batch.input_file_id)
            .where(
                Chunk.id == chunk_id,
                Chunk.state == "leased",
                Chunk.attempt == attempt,
                Chunk.nonce == nonce,
            )
        )
        found = (await session.execute(statement)).one_or_none()
    if found is None:
        raise StaleLeaseError(chunk_id)
    page = _page(unpack_lines(found.line_index), after=after, limit=limit)
    if not page:
        return b""
    # Without the file's own hash nobody could tell later whether it or a single read was wrong.
    hashes = {} if found.sha256 is None else unpack_hashes(found.line_hashes)
    try:
        contents = await _read(storage, found.storage_key, page, hashes)
    except MissingObjectError:
        await _doubt(database, found.batch_id)
        raise
    return b"".join(_wire_line(item, content) for item, content in zip(page, contents, strict=True))


async def _read(
    storage: Storage, key: str, page: Sequence[IndexedLine], hashes: Mapping[int, bytes]
) -> list[bytes]:
    ranges = [(item.offset_bytes, item.offset_bytes + item.length_bytes) for item in page]
    contents = await storage.read_ranges(key, ranges)
    for item, content in zip(page, contents, strict=True):
        if len(content) < item.length_bytes:
            raise MissingObjectError(f"the input file ends before line {item.line}")
        if item.line in hashes and hash_of(content) != hashes[item.line]:
            raise MissingObjectError(f"line {item.line} of the input file was altered")
    return contents


async def _doubt(database: Database, batch_id: str) -> None:
    async with database.transaction() as session:
        await session.execute(
            update(Batch)
            .where(Batch.id == batch_id, Batch.missing_since.is_(None))
            .values(missing_since=db_now())
        )


def _page(index: Sequence[IndexedLine], *, after: int, limit: int) -> list[IndexedLine]:
    page: list[IndexedLine] = []
    size_bytes = 0
    for item in index:
        if item.line <= after:
            continue
        size_bytes += item.length_bytes
        if page and (len(page) >= min(limit, MAX_FETCH_LINES) or size_bytes > MAX_FETCH_BYTES):
            break
        page.append(item)
    return page


def _wire_line(item: IndexedLine, content: bytes) -> bytes:
    try:
        given: dict[str, Any] = json.loads(content)
        line = {
            "line": item.line,
            "custom_id": given["custom_id"],
            "url": given["url"],
            "body": given["body"],
        }
    except (ValueError, KeyError, TypeError) as error:
        # Validation read the same bytes: the file has changed under us.
        raise WeirError(
            f"line {item.line} of the input file is not what was validated", code="input_changed"
        ) from error
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    # Half of a surrogate pair is no UTF-8, but JSON can spell it as the input file did: \ud83d.
    return text.encode(errors="backslashreplace") + b"\n"
