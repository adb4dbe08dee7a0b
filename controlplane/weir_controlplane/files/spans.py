"""Byte ranges of one object, ``[start, end)``: near ones are fetched as one. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

GAP_BYTES = 64 << 10  # ranges nearer than this


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans that cover every range, in order; near ones are one request."""
    spans: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if spans and start <= spans[-1][1] + GAP_BYTES:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def cut(spans: Sequence[tuple[int, int]], found: Sequence[bytes], start: int, end: int) -> bytes:
    """The bytes of one range out of the spans that were fetched."""
    if start >= end:
        return b""
    place = bisect.bisect_right(spans, start, key=lambda span: span[0]) - 1
    offset = start - spans[place][0]
    return bytes(found[place][offset : offset + end - start])
