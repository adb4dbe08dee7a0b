"""Chunk results merged by line: whole, in order, and in bounded memory (design.md §8.6)."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from weir_controlplane.batches.result_reader import (
    BrokenResultError,
    ResultSource,
    merged_results,
)
from weir_controlplane.files.storage import Storage
from weir_controlplane.store.line_index import line_ranges


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(f"file://{tmp_path}")


async def stored(
    storage: Storage,
    key: str,
    lines: Sequence[int],
    *,
    rest: object = "y" * 500,
    committed: Sequence[int] = (),
    end: bytes = b"\n",
) -> ResultSource:
    """The results of ``lines``; ``committed`` are what the database believes them to be."""
    content = b"\n".join(json.dumps({"line": line, "x": rest}).encode() for line in lines) + end
    async with storage.writer(key) as writer:
        await writer.write(content)
    return ResultSource(
        storage_key=key,
        size_bytes=len(content),
        sha256=writer.sha256,
        ranges=line_ranges(committed or lines),
    )


async def test_results_are_merged_from_many_sources_with_bounded_buffers(storage: Storage) -> None:
    sources = [
        await stored(storage, f"r{start}", range(start, 5001, 100)) for start in range(1, 101)
    ]
    merged = [line for line, _ in merged_results(storage, sources)]
    assert merged == list(range(1, 5001))


async def test_a_last_line_needs_no_line_end(storage: Storage) -> None:
    sources = [
        await stored(storage, "a", [1, 2, 5], end=b""),
        await stored(storage, "b", [3, 4]),
    ]
    assert [line for line, _ in merged_results(storage, sources)] == [1, 2, 3, 4, 5]


async def test_large_results_of_many_chunks_are_not_in_memory_at_once(storage: Storage) -> None:
    """Chunks are cut in prefix order: all of them may be open from the first line to the last."""
    logprobs: list[dict[str, Any]] = [{"token": f"t{n}", "top": [n]} for n in range(200)]
    sources = [
        await stored(storage, f"r{start}", [start, start + 500], rest=logprobs)
        for start in range(1, 501)
    ]
    tracemalloc.start()
    try:
        merged = [line for line, _ in merged_results(storage, sources)]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert merged == list(range(1, 1001))
    assert peak_bytes < 16 << 20


@pytest.mark.parametrize(
    ("lines", "committed", "message"),
    [
        ([1, 2], [1, 3], "a holds line 2 where line 3 is due"),
        ([2, 1], [1, 2], "a holds line 2 where line 1 is due"),
        ([1], [1, 2], "a is not what was stored"),
        ([1, 2], [1], "a is not what was stored"),
        ([1, 9], [1, 9], "line 9 follows line 9"),
    ],
)
async def test_results_that_are_not_what_was_committed_are_broken(
    storage: Storage, lines: list[int], committed: list[int], message: str
) -> None:
    sources = [
        await stored(storage, "a", lines, committed=committed),
        await stored(storage, "b", [9]),
    ]
    with pytest.raises(BrokenResultError, match=message):
        list(merged_results(storage, sources))


async def test_an_altered_result_is_broken(storage: Storage) -> None:
    source = await stored(storage, "a", [1, 2])
    async with storage.writer("a") as writer:
        await writer.write((await storage.read("a", 0, 1 << 20)).replace(b"y", b"z", 1))
    with pytest.raises(BrokenResultError, match="not what was stored"):
        list(merged_results(storage, [source]))
