"""Lines of a stored file, one after the other, in constant memory. Runs in a thread."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from weir_controlplane.errors import MissingObjectError
from weir_controlplane.files.storage import Storage
from weir_controlplane.files.storage_writer import BLOCK_BYTES

_BLANKS_GIVEN = 100  # of a block that has nothing else: as many as errors are listed


@dataclass(frozen=True, slots=True)
class RawLine:
    """One line without its line end. ``line`` counts from 1."""

    line: int
    offset_bytes: int
    content: bytes


class LineTooLongError(Exception):
    """A line is longer than the bound: reading stopped there."""

    def __init__(self, line: int, bound_bytes: int) -> None:
        super().__init__(f"line {line} is longer than {bound_bytes} bytes")
        self.line = line
        self.bound_bytes = bound_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class LineSource:
    """An object as it was stored. ``sha256`` None: that was not noted."""

    storage_key: str
    size_bytes: int
    sha256: str | None


def read_lines(
    storage: Storage, source: LineSource, *, bound_bytes: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[RawLine]:
    """The lines of an object; the last one needs no line end.

    Where a block is blank throughout only its first hundred lines are given, the others counted.

    Raises:
        LineTooLongError: a line is longer than ``bound_bytes``; memory stays bounded.
        MissingObjectError: the object ends too early, or is not what was stored, which is known
            after the last line.
    """
    digest = hashlib.sha256()
    size_bytes = source.size_bytes
    pending = b""
    offset_bytes, number, position = 0, 0, 0
    while position < size_bytes:
        block = storage.blocking_read(
            source.storage_key, position, min(position + block_bytes, size_bytes)
        )
        if not block:
            raise MissingObjectError(f"the file ends after {position} of {size_bytes} bytes")
        position += len(block)
        digest.update(block)
        parts, blanks, pending = _split(pending + block)
        for part in parts:
            number += 1
            if len(part) > bound_bytes:
                raise LineTooLongError(number, bound_bytes)
            yield RawLine(number, offset_bytes, part)
            offset_bytes += len(part) + 1
        number += blanks.count(b"\n")
        offset_bytes += len(blanks)
        if len(pending) > bound_bytes:
            raise LineTooLongError(number + 1, bound_bytes)
    if pending:
        yield RawLine(number + 1, offset_bytes, pending)
    if source.sha256 not in {None, digest.hexdigest()}:
        raise MissingObjectError("the file is not what was stored")


def _split(text: bytes) -> tuple[list[bytes], bytes, bytes]:
    """Its lines, the blank ones behind them that nobody needs, and the beginning of a last line.

    Each line costs far more than its line end: a file of these alone takes others' time.
    """
    *lines, rest = text.split(b"\n", _BLANKS_GIVEN)
    whole = rest.rfind(b"\n") + 1
    if whole and text.strip():
        *more, rest = rest.split(b"\n")
        return lines + more, b"", rest
    return lines, rest[:whole], rest[whole:]
