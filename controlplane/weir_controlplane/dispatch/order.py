"""The order in which batches get the next free room: pure.

Deadline class first; within a class the tenant with the least work out, then its batch of the
highest priority, then the one that has waited longest. A batch that waited `STARVED_S` joins the
first class: no job starves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weir_controlplane.dispatch.bounds import SOON_S, STARVED_S, URGENT_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A batch with open chunks. ``waiting_since`` is when it last got a lease, or was made."""

    batch_id: str
    tenant_id: str
    created_at: float
    expires_at: float
    waiting_since: float
    priority: int = 0


def deadline_class(batch: Waiting, now_s: float) -> int:
    """0 (first) to 2, by the time that is left and the time waited."""
    left_s = batch.expires_at - now_s
    if left_s <= URGENT_S or now_s - batch.waiting_since >= STARVED_S:
        return 0
    return 1 if left_s <= SOON_S else 2


def in_order(
    batches: Iterable[Waiting], now_s: float, *, leased_tokens: Mapping[str, int]
) -> list[Waiting]:
    """The batches, next first. ``leased_tokens``: tokens out, by tenant."""
    return sorted(
        batches,
        key=lambda batch: (
            deadline_class(batch, now_s),
            leased_tokens.get(batch.tenant_id, 0),
            -batch.priority,
            batch.waiting_since,
            batch.created_at,
            batch.batch_id,
        ),
    )
