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
    """A committed chunk result: where it is, what was stored there, and for which lines.

    ``ranges`` are the lines as closed ``[first, last]`` pairs, at least one, ascending.
    """

    storage_key: str
    size_bytes: int
    sha256: str
    ranges: Sequence[Sequence[int]]

    @property
    def first_line(self) -> int:
        """The first of its lines."""
        return int(self.ranges[0][0])

    def lines(self) -> Iterator[int]:
        """Its lines."""
        return (line for first, last in self.ranges for line in range(first, last + 1))


class BrokenResultError(Exception):
    """Results are not what was committed, or contradict each other; the message says which."""


def merged_results(
    storage: Storage, sources: Sequence[ResultSource]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every result with its line, by line.

    A source is opened only when its first line is due, and a result read only when its own is:
    parsed ones are several times as large, and many sources are open at once.

    Raises:
        BrokenResultError: a result is not what was stored or of another line, or two have the
            same line.
    """
    buffer_bytes = max(
        _MIN_BUFFER_BYTES, min(_MAX_BUFFER_BYTES, _BUFFERS_BYTES // max(1, len(sources)))
    )
    waiting = sorted(sources, key=lambda source: source.first_line, reverse=True)
    # The number breaks ties: readers themselves cannot be compared.
    due: list[tuple[int, int, Iterator[int], _Reader]] = []
    last, opened = 0, 0
    while waiting or due:
        while waiting and (not due or waiting[-1].first_line <= due[0][0]):
            source = waiting.pop()
            opened += 1
            lines, reader = source.lines(), _Reader(storage, source, buffer_bytes)
            heapq.heappush(due, (next(lines), opened, lines, reader))
        line, number, lines, reader = due[0]
        if line <= last:
            raise BrokenResultError(f"line {line} follows line {last} in the committed results")
        last = line
        yield line, reader.read(line)
        following = next(lines, None)
        if following is None:
            reader.end()
            heapq.heappop(due)
        else:
            heapq.heapreplace(due, (following, number, lines, reader))


class _Reader:
    """The results of one source, one after another; keeps at most a buffer between them."""

    def __init__(self, storage: Storage, source: ResultSource, buffer_bytes: int) -> None:
        self._storage = storage
        self._source = source
        self._buffer_bytes = buffer_bytes
        self._position = 0
        self._pending = bytearray()
        self._digest = hashlib.sha256()

    def read(self, line: int) -> dict[str, Any]:
        """The next result.

        Raises:
            BrokenResultError: it is not that of ``line``, or no result.
        """
        content = self._next()
        try:
            result: dict[str, Any] = json.loads(content)
            found = int(result["line"])
        except (ValueError, KeyError, TypeError):  # theirs would show what was read
            raise self._broken() from None
        if found != line:
            raise BrokenResultError(
                f"{self._source.storage_key} holds line {found} where line {line} is due"
            )
        return result

    def end(self) -> None:
        """Checks the end.

        Raises:
            BrokenResultError: there is more, or something of it was not what was stored.
        """
        if self._pending or self._fill() or self._digest.hexdigest() != self._source.sha256:
            raise self._broken()

    def _next(self) -> bytes:
        """The bytes of the next result; none at the end."""
        searched = 0
        while (end := self._pending.find(b"\n", searched)) < 0:
            searched = len(self._pending)
            if not self._fill():
                end = searched
                break
        content = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return content

    def _fill(self) -> bool:
        """Reads on; False at the end.

        Raises:
            BrokenResultError: it is shorter than what was stored.
        """
        source = self._source
        if self._position >= source.size_bytes:
            return False
        end = min(self._position + self._buffer_bytes, source.size_bytes)
        block = self._storage.blocking_read(source.storage_key, self._position, end)
        if not block:
            raise BrokenResultError(f"{source.storage_key} ends after {self._position} bytes")
        self._position += len(block)
        self._digest.update(block)
        self._pending += block
        return True

    def _broken(self) -> BrokenResultError:
        return BrokenResultError(f"{self._source.storage_key} is not what was stored")
