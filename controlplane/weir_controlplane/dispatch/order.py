"""The order in which batches get the next free room: pure.

Deadline class first; within a class the tenant with the least work out, then its batch of the
highest priority, then the one that has waited longest. A batch that waited `STARVED_S` goes with
the first of its tenant's, and into the first class where its tenant has nothing out: no job
starves, and a tenant of many jobs gets no more than others for their waiting.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

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


_Place: TypeAlias = tuple[int, int, float, float, str]
# A batch among its tenant's, and a tenant's first among those of others. No two places are equal.
_Own: TypeAlias = tuple[int, int, float, float, str, Waiting]
_Head: TypeAlias = tuple[int, int, _Place, str]


def deadline_class(batch: Waiting, now_s: float) -> int:
    """0 (first) to 2, by the time that is left and the time waited."""
    return 0 if _is_starved(batch, now_s) else class_by_time(batch, now_s)


class Turns:
    """Whose turn it is, while one batch after the other gets some of a pod's room.

    Of a tenant only the batch that has had its turn gets another place among the tenant's own, so
    that nothing else is put in order anew: there may be thousands, and as many turns in a sync.

    Args:
        leased_tokens: tokens out, by tenant.
        served: tenants that have something out of what the pod could run.
    """

    def __init__(
        self,
        batches: Iterable[Waiting],
        now_s: float,
        *,
        leased_tokens: Mapping[str, int],
        served: Collection[str] = (),
    ) -> None:
        self._now_s = now_s
        self._tokens = dict(leased_tokens)
        self._served = set(served)
        self._queues: dict[str, list[_Own]] = {}
        self._classes: dict[str, Counter[int]] = {}  # by the time that is left, of those that wait
        for batch in batches:
            self._queues.setdefault(batch.tenant_id, []).append(self._own(batch))
            own = class_by_time(batch, now_s)
            self._classes.setdefault(batch.tenant_id, Counter())[own] += 1
        self._heads: list[_Head] = []
        for tenant_id, queue in self._queues.items():
            heapq.heapify(queue)
            self._heads.append(self._head(tenant_id))
        heapq.heapify(self._heads)

    def first(self) -> Waiting | None:
        """The batch whose turn it is; None when none is left."""
        return self._queues[self._heads[0][-1]][0][-1] if self._heads else None

    def passes(self) -> None:
        """The first one takes nothing, and gets no other turn."""
        tenant_id = self._heads[0][-1]
        heapq.heappop(self._queues[tenant_id])
        self._place(tenant_id)

    def took(self, tokens: int, *, has_more: bool) -> None:
        """The first one has got so many tokens; its next turn comes when that of others has."""
        tenant_id = self._heads[0][-1]
        queue = self._queues[tenant_id]
        batch = queue[0][-1]
        self._tokens[tenant_id] = self._tokens.get(tenant_id, 0) + tokens
        self._served.add(tenant_id)
        if has_more:
            heapq.heapreplace(queue, self._own(replace(batch, waiting_since=self._now_s)))
        else:
            heapq.heappop(queue)
            self._classes[tenant_id][class_by_time(batch, self._now_s)] -= 1
        self._place(tenant_id)

    def _place(self, tenant_id: str) -> None:
        if self._queues[tenant_id]:
            heapq.heapreplace(self._heads, self._head(tenant_id))
        else:
            heapq.heappop(self._heads)

    def _own(self, batch: Waiting) -> _Own:
        return (
            deadline_class(batch, self._now_s),
            -batch.priority,
            batch.waiting_since,
            batch.created_at,
            batch.batch_id,
            batch,
        )

    def _head(self, tenant_id: str) -> _Head:
        own = self._queues[tenant_id][0]
        return (self._among_tenants(own[-1]), self._tokens.get(tenant_id, 0), own[:-1], tenant_id)

    def _among_tenants(self, batch: Waiting) -> int:
        if not _is_starved(batch, self._now_s):
            return class_by_time(batch, self._now_s)
        if batch.tenant_id not in self._served:
            return 0
        return min(own for own, count in self._classes[batch.tenant_id].items() if count)


def _is_starved(batch: Waiting, now_s: float) -> bool:
    return now_s - batch.waiting_since >= STARVED_S


def class_by_time(batch: Waiting, now_s: float) -> int:
    """0 (first) to 2, by the time that is left alone."""
    left_s = batch.expires_at - now_s
    if left_s <= URGENT_S:
        return 0
    return 1 if left_s <= SOON_S else 2
