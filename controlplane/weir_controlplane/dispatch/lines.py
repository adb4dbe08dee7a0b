"""Input lines of a chunk for its holder: bounded, ranged reads of the input file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from weir_controlplane.dispatch.bounds import MAX_FETCH_BYTES, MAX_FETCH_LINES
from weir_controlplane.dispatch.errors import StaleLeaseError
from weir_controlplane.errors import WeirError
from weir_controlplane.files.storage import Storage
from weir_controlplane.store.database import Database
from weir_controlplane.store.line_index import IndexedLine, unpack_lines
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
    """
    async with database.read() as session:
        statement = (
            select(Chunk.line_index, File.storage_key)
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
    ranges = [(item.offset_bytes, item.offset_bytes + item.length_bytes) for item in page]
    contents = await storage.read_ranges(found.storage_key, ranges)
    return b"".join(_wire_line(item, content) for item, content in zip(page, contents, strict=True))


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
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
