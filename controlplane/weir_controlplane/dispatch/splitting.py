"""Cutting the lines of a chunk into what goes on, what runs alone and what has failed: pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from weir_controlplane.store.line_index import IndexedLine


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Lines of one chunk, each in exactly one part. ``done`` and ``failed`` need no more work."""

    rest: tuple[IndexedLine, ...]
    alone: tuple[IndexedLine, ...]
    failed: tuple[IndexedLine, ...]
    done: tuple[IndexedLine, ...]


def split(
    index: Sequence[IndexedLine],
    *,
    done: Collection[int] = (),
    suspects: Collection[int] = (),
    failed: Collection[int] = (),
) -> Parts:
    """The parts of a chunk. A line that is done is done, whatever it was suspected of."""
    parts: dict[str, list[IndexedLine]] = {"rest": [], "alone": [], "failed": [], "done": []}
    for item in index:
        if item.line in done:
            name = "done"
        elif item.line in failed:
            name = "failed"
        else:
            name = "alone" if item.line in suspects else "rest"
        parts[name].append(item)
    return Parts(
        rest=tuple(parts["rest"]),
        alone=tuple(parts["alone"]),
        failed=tuple(parts["failed"]),
        done=tuple(parts["done"]),
    )
