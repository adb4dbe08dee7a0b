"""Committed chunk results of a batch, merged by input line with bounded reads. Runs in a thread."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from weir_controlplane.files.storage import Storage

_BUFFERS_BYTES = 32 << 20  # together; each source has an equal share within these bounds
_MIN_BUFFER_BYTES = 16 << 10
_MAX_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultSource:
    """A committed chunk result: where it is, what was stored there, and its first line."""

    storage_key: str
    size_bytes: int
    sha256: str
    first_line: int


class BrokenResultError(Exception):
    """Results are not what was committed, or contradict each other; the message says which."""


def merged_results(
    storage: Storage, sources: Sequence[ResultSource]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every result with its line, by line. A source is opened only when its first line is due.

    Raises:
        BrokenResultError: a result is not what was stored or not sorted, or two have the same
            line.
    """
    buffer_bytes = max(
        _MIN_BUFFER_BYTES, min(_MAX_BUFFER_BYTES, _BUFFERS_BYTES // max(1, len(sources)))
    )
    waiting = sorted(sources, key=lambda source: source.first_line, reverse=True)
    # The number breaks ties: results themselves cannot be compared.
    open_sources: list[tuple[int, int, dict[str, Any], Iterator[dict[str, Any]]]] = []
    last, opened = 0, 0
    while waiting or open_sources:
        while waiting and (not open_sources or waiting[-1].first_line <= open_sources[0][0]):
            source = waiting.pop()
            results = _results(storage, source, buffer_bytes)
            opened += 1
            first = next(results, None)
            if first is None or first["line"] != source.first_line:
                raise BrokenResultError(
                    f"{source.storage_key} does not begin with line {source.first_line}"
                )
            heapq.heappush(open_sources, (first["line"], opened, first, results))
        line, number, result, results = open_sources[0]
        if line <= last:
            raise BrokenResultError(f"line {line} follows line {last} in the committed results")
        last = line
        yield line, result
        following = next(results, None)
        if following is None:
            heapq.heappop(open_sources)
        else:
            heapq.heapreplace(open_sources, (following["line"], number, following, results))


def _results(storage: Storage, source: ResultSource, buffer_bytes: int) -> Iterator[dict[str, Any]]:
    pending = b""
    position = 0
    digest = hashlib.sha256()
    while position < source.size_bytes:
        end = min(position + buffer_bytes, source.size_bytes)
        block = storage.blocking_read(source.storage_key, position, end)
        if not block:
            raise BrokenResultError(f"{source.storage_key} ends after {position} bytes")
        position += len(block)
        digest.update(block)
        parts = (pending + block).split(b"\n")
        pending = parts.pop()
        yield from (_result(source, part) for part in parts if part)
    if pending:
        yield _result(source, pending)
    if digest.hexdigest() != source.sha256:
        raise BrokenResultError(f"{source.storage_key} is not what was stored")


def _result(source: ResultSource, content: bytes) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(content)
        int(result["line"])
    except (ValueError, KeyError, TypeError):  # theirs would show what was read
        raise BrokenResultError(f"{source.storage_key} is not what was stored") from None
    return result
