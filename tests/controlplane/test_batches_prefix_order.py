"""Prefix order: families of prompts stay together, and no line is lost on the way."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from weir_controlplane.batches.prefix_order import (
    BLOCK_BYTES,
    PlacedLine,
    PlannedChunk,
    plan_chunks,
    prefix_key,
    shared_blocks,
)
from weir_controlplane.store.line_index import hash_of


def placed(line: int, text: str, *, output_tokens: int = 10) -> PlacedLine:
    encoded = text.encode()
    return PlacedLine(
        line=line,
        offset_bytes=line * 1000,
        length_bytes=len(encoded),
        prompt_tokens=len(encoded) // 4 + 1,
        output_tokens=output_tokens,
        key=prefix_key(encoded),
        digest=hash_of(encoded),
    )


def documents(count: int, *, size: int, system: str = "") -> list[str]:
    rng = random.Random(7)  # noqa: S311
    return [system + "".join(rng.choice("abcdefgh ") for _ in range(size)) for _ in range(count)]


def plan(lines: list[PlacedLine], *, max_lines: int = 32) -> list[PlannedChunk]:
    return plan_chunks(lines, max_lines=max_lines, max_tokens=1_000_000)


@given(st.text(max_size=3000), st.text(max_size=500), st.text(max_size=500))
def test_keys_agree_as_far_as_the_texts_do(common: str, one: str, other: str) -> None:
    keys = [prefix_key((common + tail).encode()) for tail in (one, other)]
    blocks = shared_blocks(*keys)
    assert blocks >= min(16, len(common.encode()) // BLOCK_BYTES)
    longest = max(len((common + tail).encode()) for tail in (one, other))
    assert blocks <= longest // BLOCK_BYTES


def test_keys_of_long_prompts_stay_short() -> None:
    assert len(prefix_key(b"x" * 4_000_000)) <= 8 * 100


def test_lines_of_one_document_stand_together() -> None:
    texts = documents(40, size=3000)
    lines = [placed(n + 1, f"{texts[n % 40]} question {n}") for n in range(600)]
    chunks = plan(lines, max_lines=15)
    for chunk in chunks:
        assert len({(line.line - 1) % 40 for line in chunk.lines}) == 1
    groups = [chunk.prefix_group for chunk in chunks]
    assert len(set(groups)) == 40


def test_a_common_system_prompt_does_not_melt_documents_into_one_family() -> None:
    texts = documents(10, size=6000, system="You are kind. " * 80)
    lines = [placed(n + 1, f"{texts[n % 10]} question {n}") for n in range(100)]
    assert len({chunk.prefix_group for chunk in plan(lines, max_lines=10)}) == 10


def test_the_parts_of_a_large_family_keep_its_name() -> None:
    text = documents(1, size=3000)[0]
    chunks = plan([placed(n + 1, f"{text} {n}") for n in range(100)])
    assert [len(chunk.lines) for chunk in chunks] == [32, 32, 32, 4]
    assert len({chunk.prefix_group for chunk in chunks}) == 1


def test_small_families_share_a_chunk() -> None:
    lines = [placed(n + 1, text) for n, text in enumerate(documents(60, size=1000))]
    assert len(plan(lines)) == 2


def test_a_line_longer_than_a_chunk_has_one_of_its_own() -> None:
    lines = [placed(1, "a"), placed(2, "b" * 8000), placed(3, "c")]
    chunks = plan_chunks(lines, max_lines=32, max_tokens=100)
    assert sorted(len(chunk.lines) for chunk in chunks) == [1, 2]


def test_density_counts_a_shared_prefix_once() -> None:
    text = documents(1, size=4096)[0]
    together = plan([placed(n, f"{text}{n}", output_tokens=100) for n in range(1, 11)])[0]
    apart = plan([placed(1, text, output_tokens=100)])[0]
    assert together.density < apart.density / 5


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 900), st.integers(1, 500)), max_size=80),
    st.integers(1, 10),
    st.integers(50, 2000),
)
def test_every_line_is_in_exactly_one_chunk(
    shapes: list[tuple[int, int, int]], max_lines: int, max_tokens: int
) -> None:
    lines = [
        placed(n, f"{family}" * 600 + "x" * tail, output_tokens=output)
        for n, (family, tail, output) in enumerate(shapes, 1)
    ]
    chunks = plan_chunks(lines, max_lines=max_lines, max_tokens=max_tokens)
    assert Counter(line.line for chunk in chunks for line in chunk.lines) == Counter(
        range(1, len(lines) + 1)
    )
    for chunk in chunks:
        assert 1 <= len(chunk.lines) <= max_lines
        assert chunk.tokens <= max_tokens or len(chunk.lines) == 1
        assert chunk.density > 0
    assert chunks == plan_chunks(lines[::-1], max_lines=max_lines, max_tokens=max_tokens)
