"""Other choices of whom to preempt, to hold ``offline_victims`` against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from weir_engine.request import Request
from weir_engine.sched.preemption import Releasable, Victim, offline_victims


class Choice(Protocol):
    """What takes the place of ``offline_victims``."""

    def __call__(
        self,
        running: Sequence[Request],
        *,
        blocks: int,
        slots: int,
        releasable: Releasable,
        adopted_blocks: int = 0,
    ) -> list[Victim] | None:
        """The requests to preempt; None: not enough."""
        ...


def victims_by_tail(
    running: Sequence[Request],
    *,
    blocks: int,
    slots: int,
    releasable: Releasable,
    adopted_blocks: int = 0,
    block_size_tokens: int = 16,
) -> list[Victim] | None:
    """Like ``offline_victims``; lost are only tokens beyond the last full block."""

    def lost(request: Request) -> float:
        full = min(len(request.block_hashes), request.computed_tokens // block_size_tokens)
        tail = request.computed_tokens - full * block_size_tokens
        return tail / max(releasable([request.id]), 1)

    ordered = sorted(running, key=lambda r: (lost(r), -r.arrival_s))
    return _first(ordered, blocks, slots, releasable, adopted_blocks)


def victims_by_arrival(
    running: Sequence[Request],
    *,
    blocks: int,
    slots: int,
    releasable: Releasable,
    adopted_blocks: int = 0,
) -> list[Victim] | None:
    """The last arrivals, as vLLM does."""
    ordered = sorted(running, key=lambda r: (r.arrival_s, r.id), reverse=True)
    return _first(ordered, blocks, slots, releasable, adopted_blocks)


def _first(
    ordered: Sequence[Request],
    blocks: int,
    slots: int,
    releasable: Releasable,
    adopted_blocks: int,
) -> list[Victim] | None:
    victims = []
    for request in ordered:
        if blocks <= 0 and slots <= 0:
            break
        own = releasable([request.id])
        freed = max(0, own - adopted_blocks)
        if freed == 0 and slots <= 0:
            continue
        victims.append(Victim(request, own))
        blocks -= freed
        slots -= 1
    return victims if blocks <= 0 and slots <= 0 else None


# The type checker holds these against the scheduler's own.
CHOICES: dict[str, Choice] = {
    "victims-fewest-tokens": offline_victims,
    "victims-tail": victims_by_tail,
    "victims-last": victims_by_arrival,
}
