"""Where the lines of a chunk lie in the input file, and what they were: packed, sorted by line."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_RECORD = struct.Struct("<IQII")  # line, byte offset, byte length, estimated tokens
_HASH_BYTES = 8  # against what disks do, not against an enemy
_HASH = struct.Struct(f"<I{_HASH_BYTES}s")  # line, hash of its content


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class IndexedLine:
    """One line of an input file, without its line end. ``line`` counts from 1."""

    line: int
    offset_bytes: int
    length_bytes: int
    tokens: int


def pack_lines(lines: Iterable[IndexedLine]) -> bytes:
    """The index of ``lines``, sorted by line."""
    return b"".join(
        _RECORD.pack(item.line, item.offset_bytes, item.length_bytes, item.tokens)
        for item in sorted(lines)
    )


def unpack_lines(index: bytes) -> list[IndexedLine]:
    """The lines of an index, by line."""
    return [
        IndexedLine(line=line, offset_bytes=offset, length_bytes=length, tokens=tokens)
        for line, offset, length, tokens in _RECORD.iter_unpack(index)
    ]


def hash_of(content: bytes) -> bytes:
    """The hash of a line without its line end."""
    return hashlib.blake2b(content, digest_size=_HASH_BYTES).digest()


def pack_hashes(hashes: Mapping[int, bytes]) -> bytes:
    """The hashes of lines."""
    return b"".join(_HASH.pack(line, digest) for line, digest in sorted(hashes.items()))


def unpack_hashes(packed: bytes | None) -> dict[int, bytes]:
    """The hashes by line; none where nobody has noted any."""
    return dict(_HASH.iter_unpack(packed or b""))


def line_ranges(lines: Iterable[int]) -> list[list[int]]:
    """Ascending line numbers as closed ``[first, last]`` pairs."""
    ranges: list[list[int]] = []
    for line in lines:
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    return ranges


def lines_of_ranges(ranges: Sequence[Sequence[int]]) -> list[int]:
    """The line numbers that closed ``[first, last]`` pairs cover."""
    return [line for first, last in ranges for line in range(first, last + 1)]
