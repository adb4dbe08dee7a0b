"""Other choices of whom to preempt, to hold ``offline_victims`` against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from weir_engine.ids import RequestId
from weir_engine.request import Request


def victims_by_tail(
    running: Iterable[Request],
    *,
    blocks: int,
    slots: int,
    releasable: Callable[[RequestId], int],
    block_size_tokens: int = 16,
) -> list[Request] | None:
    """Like ``offline_victims``; lost are only tokens beyond the last full block."""

    def lost(request: Request) -> float:
        full = min(len(request.block_hashes), request.computed_tokens // block_size_tokens)
        tail = request.computed_tokens - full * block_size_tokens
        return tail / max(releasable(request.id), 1)

    return _first(sorted(running, key=lambda r: (lost(r), -r.arrival_s)), blocks, slots, releasable)


def victims_by_arrival(
    running: Iterable[Request],
    *,
    blocks: int,
    slots: int,
    releasable: Callable[[RequestId], int],
) -> list[Request] | None:
    """The last arrivals, as vLLM does."""
    ordered = sorted(running, key=lambda r: (r.arrival_s, r.id), reverse=True)
    return _first(ordered, blocks, slots, releasable)


def _first(
    ordered: Sequence[Request], blocks: int, slots: int, releasable: Callable[[RequestId], int]
) -> list[Request] | None:
    victims = []
    for request in ordered:
        if blocks <= 0 and slots <= 0:
            break
        freed = releasable(request.id)
        if freed == 0 and slots <= 0:
            continue
        victims.append(request)
        blocks -= freed
        slots -= 1
    return victims if blocks <= 0 and slots <= 0 else None
