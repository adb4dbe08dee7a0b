"""Results on disk until the control plane has them: one folder a chunk, appended line by line.

Survives a restart of the process. Before a chunk is taken its worst case is reserved within half
the volume, so that a full disk never evicts the pod (design §8, rule 3).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from weir_agent import wire

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
ORDINARY_LINES = 32
_RESULTS = "results.ndjson"


class DiskFullError(Exception):
    """The volume under the agent took no more; nothing that was stored is lost."""


class NoRoomError(DiskFullError):
    """The worst case of one chunk does not fit; the volume itself takes more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sealed:
    """What a chunk's upload will say: bytes in the order of lines, on disk for good."""

    sha256: str
    size_bytes: int
    lines: tuple[int, ...]
    blocks: Callable[[], Iterator[bytes]]

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The lines as first-last pairs."""
        return as_ranges(self.lines)


def as_ranges(lines: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Rising line numbers as first-last pairs."""
    ranges: list[tuple[int, int]] = []
    for line in lines:
        if ranges and ranges[-1][1] == line - 1:
            ranges[-1] = (ranges[-1][0], line)
        else:
            ranges.append((line, line))
    return tuple(ranges)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """Where in a file the result of each line is, as offset and length."""

    spans: Mapping[int, tuple[int, int]]
    end_bytes: int


def read_stored(folder: Path) -> Stored:
    """What an earlier process stored in a chunk's folder; takes a second for some 100 MB.

    Raises:
        OSError: the file cannot be read.
    """
    # A process that was killed may have left half a line at the end, a machine that lost its power
    # anything after what was forced to disk: the lines from there on run again.
    spans: dict[int, tuple[int, int]] = {}
    end_bytes = 0
    with contextlib.suppress(FileNotFoundError), (folder / _RESULTS).open("rb") as stored:
        for record in stored:
            line = _line_of(record)
            if line is None:
                break
            spans.setdefault(line, (end_bytes, len(record)))
            end_bytes += len(record)
    return Stored(spans=spans, end_bytes=end_bytes)


class ChunkFile:
    """The stored results of one chunk."""

    def __init__(self, folder: Path, lease: wire.Lease, stored: Stored) -> None:
        """``stored``: what the file has; anything after it is cut off."""
        self.folder = folder
        self.lease = lease
        self._spans = dict(stored.spans)
        self._end = stored.end_bytes
        self._descriptor = os.open(folder / _RESULTS, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._descriptor, self._end)

    @property
    def stored(self) -> Stored:
        """What the file has."""
        return Stored(spans=self._spans, end_bytes=self._end)

    @property
    def finished(self) -> frozenset[int]:
        """Lines that have a result."""
        return frozenset(self._spans)

    @property
    def size_bytes(self) -> int:
        """Stored bytes."""
        return self._end

    def append(self, line: int, record: bytes) -> None:
        """Stores a line's result; the first one of a line stays.

        Raises:
            DiskFullError: the volume took no more; what was stored is as it was.
            OSError: any other fault of the file system.
        """
        if line in self._spans:
            return
        try:
            written = 0
            while written < len(record):
                written += os.pwrite(self._descriptor, record[written:], self._end + written)
        except OSError as error:
            with contextlib.suppress(OSError):  # the next result is written over what is torn
                os.ftruncate(self._descriptor, self._end)
            if error.errno not in DISK_ERRORS:
                raise
            raise DiskFullError(f"{self.folder.parent}: {error.strerror}") from None
        self._spans[line] = (self._end, len(record))
        self._end += len(record)

    def seal(self) -> Sealed:
        """Everything stored so far, forced to disk, for one upload.

        Raises:
            DiskFullError: the volume could not take what was written before.
        """
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise DiskFullError(f"{self.folder.parent}: {error.strerror}") from None
        lines = tuple(sorted(self._spans))
        spans = tuple(self._spans[line] for line in lines)

        def blocks() -> Iterator[bytes]:
            for offset, length in spans:
                yield os.pread(self._descriptor, length, offset)

        digest = hashlib.sha256()
        for block in blocks():
            digest.update(block)
        return Sealed(
            sha256=digest.hexdigest(),
            size_bytes=sum(length for _, length in spans),
            lines=lines,
            blocks=blocks,
        )

    def close(self) -> None:
        """Gives the descriptor back; the file stays."""
        os.close(self._descriptor)


def _line_of(record: bytes) -> int | None:
    """The line of a stored result; None of what is no whole record."""
    if not record.endswith(b"\n"):
        return None
    try:
        return int(json.loads(record)["line"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


class Spool:
    """The chunks of one agent on its volume."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int | None,
        result_max_bytes: int,
        volume: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage,
    ) -> None:
        """``volume`` tells total, used and free bytes of the volume of a folder."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._result_max_bytes = result_max_bytes
        self._volume = volume
        self._open: dict[str, ChunkFile] = {}
        self._read: dict[str, Stored] = {}
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def line_bytes(self) -> int:
        """Bytes that are reserved for the result of one line."""
        return self._result_max_bytes

    @property
    def used_bytes(self) -> int:
        """Stored bytes of all chunks."""
        return sum(file.size_bytes for file in self._open.values())

    @property
    def reserved_bytes(self) -> int:
        """Worst case of the chunks that are held."""
        return sum(self._worst_case(file.lease) for file in self._open.values())

    @property
    def room_bytes(self) -> int:
        """Bytes that new chunks may reserve."""
        total, free = self._space()
        bound = total // 2 if self._max_bytes is None else self._max_bytes
        # What is stored already occupies its part of the reservation.
        outstanding = self.reserved_bytes - self.used_bytes
        return max(0, min(bound - self.reserved_bytes, free // 2 - outstanding))

    @property
    def volume_full(self) -> bool:
        """True when what is promised to held chunks, and one result more, is not free any more."""
        _, free = self._space()
        return free < self.reserved_bytes - self.used_bytes + self._result_max_bytes

    @property
    def has_room(self) -> bool:
        """True when a chunk of ordinary size would fit again."""
        return self.room_bytes >= ORDINARY_LINES * self._result_max_bytes

    @property
    def lack(self) -> str:
        """What new chunks may take and what they need, in words, for whoever is to make room."""
        total, free = self._space()
        return (
            f"{free} of {total} bytes are free, of which chunks may take {self.room_bytes}; they "
            f"need {ORDINARY_LINES * self._result_max_bytes}: make room on the volume of "
            "WEIR_DATA_DIR, raise WEIR_SPOOL_MAX_BYTES where it is set, or lower "
            "WEIR_RESULT_MAX_BYTES"
        )

    async def read_ahead(self, chunk_id: str) -> None:
        """Reads what an earlier process stored of a chunk, in a thread: ``open`` then need not."""
        if chunk_id in self._open or chunk_id in self._read:
            return
        with contextlib.suppress(OSError):  # it is ``open`` that says so
            self._read[chunk_id] = await asyncio.to_thread(read_stored, self._folder / chunk_id)

    def open(self, lease: wire.Lease) -> ChunkFile:
        """The file of a newly leased chunk; results of an earlier attempt at it are kept.

        Raises:
            NoRoomError: the worst case of the chunk does not fit.
            DiskFullError: the volume is full, or cannot be written.
            OSError: any other fault of the file system.
        """
        earlier = self._open.get(lease.chunk_id)
        if earlier is not None:
            if earlier.lease.attempt == lease.attempt:
                return earlier
            earlier.close()
            del self._open[lease.chunk_id]
            self._read[lease.chunk_id] = earlier.stored
        if self._worst_case(lease) > self.room_bytes:
            raise NoRoomError(
                f"chunk {lease.chunk_id} may need {self._worst_case(lease)} bytes and "
                f"{self.room_bytes} are left"
            )
        folder = self._folder / lease.chunk_id
        try:
            if not folder.is_dir():
                folder.unlink(missing_ok=True)  # somebody's file, or a link to nowhere
            folder.mkdir(exist_ok=True, mode=0o700)
            stored = self._read.get(lease.chunk_id)
            file = ChunkFile(folder, lease, stored or read_stored(folder))
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            raise DiskFullError(f"{self._folder}: {error.strerror}") from None
        self._open[lease.chunk_id] = file
        self._read.pop(lease.chunk_id, None)
        return file

    def drop(self, chunk_id: str) -> None:
        """Forgets a chunk and deletes what was stored of it."""
        self._read.pop(chunk_id, None)
        file = self._open.pop(chunk_id, None)
        if file is not None:
            file.close()
        path = self._folder / chunk_id
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):  # there is none, or it is a folder that stays
            path.unlink()

    def keep_only(self, chunk_ids: frozenset[str]) -> tuple[str, ...]:
        """Deletes what an earlier process stored of other chunks; returns their ids."""
        gone = tuple(
            entry.name
            for entry in self._folder.iterdir()
            if entry.name not in chunk_ids and entry.name not in self._open
        )
        for chunk_id in gone:
            self.drop(chunk_id)
        return gone

    def close(self) -> None:
        """Closes all files; they stay for the next process."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _space(self) -> tuple[int, int]:
        """Total and free bytes of the volume. A folder that somebody removed is made again."""
        try:
            total, _, free = self._volume(self._folder)
        except FileNotFoundError:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            total, _, free = self._volume(self._folder)
        return total, free

    def _worst_case(self, lease: wire.Lease) -> int:
        return lease.lines * self._result_max_bytes
