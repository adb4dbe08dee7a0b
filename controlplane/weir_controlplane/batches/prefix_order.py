"""Prefix order: lines that begin alike stand together, so that engines compute a prefix once.

A line's key is a chain of hashes of its prompt up to growing boundaries: two keys agree in as
many hashes as the prompts have boundaries in common. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, pairwise

from weir_controlplane.batches.prompt import BYTES_PER_TOKEN

HASH_BYTES = 8
BLOCK_BYTES = 256  # about 64 tokens: four KV blocks
_EVEN_BLOCKS = 16
_GROWTH = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedLine:
    """A line of the input with what decides its place.

    ``key`` is from `prefix_key`, ``digest`` from `store.line_index.hash_of`.
    """

    line: int
    offset_bytes: int
    length_bytes: int
    prompt_tokens: int
    output_tokens: int
    key: bytes
    digest: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedChunk:
    """Lines to be leased together, in prefix order."""

    lines: tuple[PlacedLine, ...]
    prefix_group: str
    tokens: int
    density: float


def _steps_bytes() -> Iterator[int]:
    """Distances between the boundaries: even at first, then an eighth of the way so far."""
    end = 0
    for number in count():
        step = BLOCK_BYTES if number < _EVEN_BLOCKS else end // _GROWTH
        end += step
        yield step


def prefix_key(text: bytes) -> bytes:
    """The hashes of every prefix of ``text`` that ends at a boundary, joined."""
    digest = hashlib.blake2b(digest_size=HASH_BYTES)
    key = bytearray()
    start = 0
    for step in _steps_bytes():
        if start + step > len(text):
            break
        digest.update(text[start : start + step])
        key += digest.copy().digest()
        start += step
    return bytes(key)


def shared_blocks(one: bytes, other: bytes) -> int:
    """How many hashes two keys have in common from the start."""
    bound = min(len(one), len(other)) // HASH_BYTES
    low, high = 0, bound
    while low < high:  # hashes are chained: once they differ they go on differing
        middle = (low + high + 1) // 2
        if one[: middle * HASH_BYTES] == other[: middle * HASH_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low


def plan_chunks(
    lines: Sequence[PlacedLine], *, max_lines: int, max_tokens: int
) -> list[PlannedChunk]:
    """Every line in exactly one chunk, prefix families together where they fit.

    A chunk holds at most ``max_lines`` lines and ``max_tokens`` estimated tokens, unless a single
    line is longer than that.
    """
    chunks: list[PlannedChunk] = []
    current: list[PlacedLine] = []
    current_tokens, current_name = 0, ""
    for name, family in _families(sorted(lines, key=lambda item: (item.key, item.line))):
        family_tokens = sum(_tokens(line) for line in family)
        fits = (
            len(current) + len(family) <= max_lines and current_tokens + family_tokens <= max_tokens
        )
        half_full = 2 * len(current) >= max_lines or 2 * current_tokens >= max_tokens
        if current and not fits and half_full:
            chunks.append(_chunk(current, current_name))
            current, current_tokens = [], 0
        for line in family:
            full = len(current) >= max_lines or current_tokens + _tokens(line) > max_tokens
            if current and full:
                chunks.append(_chunk(current, current_name))
                current, current_tokens = [], 0
            if not current:
                current_name = name
            current.append(line)
            current_tokens += _tokens(line)
    if current:
        chunks.append(_chunk(current, current_name))
    return chunks


def _families(ordered: Sequence[PlacedLine]) -> Iterator[tuple[str, Sequence[PlacedLine]]]:
    """Runs of lines that share clearly more with each other than with their neighbours."""
    shared = [shared_blocks(one.key, other.key) for one, other in pairwise(ordered)]
    start = 0
    for place in range(len(ordered)):
        last = place == len(ordered) - 1
        if last or _splits(shared, place, ordered[place], ordered[place + 1]):
            common = min(shared[start:place], default=len(ordered[start].key) // HASH_BYTES)
            name = ordered[start].key[max(0, common - 1) * HASH_BYTES : common * HASH_BYTES]
            yield name.hex(), ordered[start : place + 1]
            start = place + 1


def _splits(shared: Sequence[int], place: int, one: PlacedLine, other: PlacedLine) -> bool:
    if not one.key and not other.key:
        return False  # prompts too short to share anything: one family without a name
    around = max(
        shared[place - 1] if place > 0 else 0,
        shared[place + 1] if place + 1 < len(shared) else 0,
    )
    return shared[place] == 0 or 2 * shared[place] < around


def _tokens(line: PlacedLine) -> int:
    return line.prompt_tokens + line.output_tokens


def _chunk(lines: Sequence[PlacedLine], name: str) -> PlannedChunk:
    prompt_tokens = sum(line.prompt_tokens for line in lines)
    output_tokens = sum(line.output_tokens for line in lines)
    reused_tokens = sum(
        min(_prefix_tokens(one, other), other.prompt_tokens) for one, other in pairwise(lines)
    )
    return PlannedChunk(
        lines=tuple(lines),
        prefix_group=name,
        tokens=prompt_tokens + output_tokens,
        # Compute goes with the prompt tokens not in the cache, memory with the tokens produced
        # (BlendServe §4.1 has seconds of both; here only their ratio orders chunks).
        density=(prompt_tokens - reused_tokens) / output_tokens,
    )


def _prefix_tokens(one: PlacedLine, other: PlacedLine) -> int:
    blocks = shared_blocks(one.key, other.key)
    return sum(islice(_steps_bytes(), blocks)) // BYTES_PER_TOKEN
