"""The order in which batches get the next free room: pure.

Deadline class first; within a class the tenant with the least work out, then its batch of the
highest priority, then the one that has waited longest. A batch that waited `STARVED_S` goes with
the first of its tenant's, and into the first class where its tenant has nothing out: no job
starves, and a tenant of many jobs gets no more than others for their waiting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
    return 0 if _is_starved(batch, now_s) else class_by_time(batch, now_s)


def in_order(
    batches: Iterable[Waiting],
    now_s: float,
    *,
    leased_tokens: Mapping[str, int],
    served: Collection[str] = (),
) -> list[Waiting]:
    """The batches, next first.

    ``leased_tokens``: tokens out, by tenant. ``served``: tenants that have something out of what
    the pod could run.
    """
    queue = list(batches)
    best: dict[str, int] = {}
    for batch in queue:
        own = class_by_time(batch, now_s)
        best[batch.tenant_id] = min(own, best.get(batch.tenant_id, own))

    def among_tenants(batch: Waiting) -> int:
        if not _is_starved(batch, now_s):
            return class_by_time(batch, now_s)
        return best[batch.tenant_id] if batch.tenant_id in served else 0

    return sorted(
        queue,
        key=lambda batch: (
            among_tenants(batch),
            leased_tokens.get(batch.tenant_id, 0),
            deadline_class(batch, now_s),
            -batch.priority,
            batch.waiting_since,
            batch.created_at,
            batch.batch_id,
        ),
    )


def _is_starved(batch: Waiting, now_s: float) -> bool:
    return now_s - batch.waiting_since >= STARVED_S


def class_by_time(batch: Waiting, now_s: float) -> int:
    """0 (first) to 2, by the time that is left alone."""
    left_s = batch.expires_at - now_s
    if left_s <= URGENT_S:
        return 0
    return 1 if left_s <= SOON_S else 2
