"""Results as they arrive, piece by piece."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from tests.controlplane.agent_sim import result_line
from weir_controlplane.dispatch import result_lines
from weir_controlplane.dispatch.result_lines import ResultLines
from weir_controlplane.errors import PayloadTooLargeError

PIECE_BYTES = 64 << 10


def fed(content: bytes, piece_bytes: int) -> ResultLines:
    lines = ResultLines(expected=range(1, 100))
    for start in range(0, len(content), piece_bytes):
        lines.feed(content[start : start + piece_bytes])
    lines.end()
    return lines


@pytest.mark.parametrize("last", [b"", b"\n"])
@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
def test_lines_are_the_same_however_they_are_cut(piece_bytes: int, last: bytes) -> None:
    content = b"\n".join(json.dumps(result_line(n, "é" * n)).encode() for n in (1, 2, 3, 7)) + last
    lines = fed(content, piece_bytes)
    assert (lines.ranges, lines.completed_lines) == ([[1, 3], [7, 7]], 4)
    assert lines.tokens["output_tokens"] == 4 * 5


def test_a_long_line_is_not_copied_with_every_piece_of_it() -> None:
    """A replica receives many at once, and answers syncs meanwhile."""
    content = json.dumps(result_line(1, "x" * (8 << 20))).encode()
    lines = ResultLines(expected={1})
    tracemalloc.start()
    for start in range(0, len(content), PIECE_BYTES):
        lines.feed(content[start : start + PIECE_BYTES])
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 2 * len(content)
    lines.end()
    assert lines.lines == [1]


@pytest.mark.parametrize("piece_bytes", [10, 1 << 20])
def test_a_line_over_the_bound_is_refused(
    monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    good = json.dumps(result_line(1, "x")).encode() + b"\n"
    monkeypatch.setattr(result_lines, "MAX_RESULT_LINE_BYTES", len(good))
    long = json.dumps(result_line(2, "x" * 100)).encode() + b"\n"
    with pytest.raises(PayloadTooLargeError, match="a result line is over"):
        fed(good + long, piece_bytes)
