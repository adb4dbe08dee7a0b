"""When batches will end, by the order in which dispatch serves them: pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Remaining:
    """What is left of a running batch. ``rank``: its deadline class, 0 first."""

    batch_id: str
    tenant_id: str
    rank: int
    priority: int
    created_at: float
    tokens: float


def seconds_to_end(batches: Iterable[Remaining], *, tokens_per_s: float) -> dict[str, float]:
    """Seconds until each batch ends, when its model's pods go on at this rate.

    A deadline class waits for those before it; within a class the tenants share the rate equally,
    and a tenant's batches follow each other. That is dispatch's own order (`dispatch.order`), but
    for what changes on the way: a batch that becomes urgent, or that waited too long.

    Raises:
        ValueError: the rate is not above 0.
    """
    if tokens_per_s <= 0:
        raise ValueError(f"tokens_per_s is {tokens_per_s}, must be above 0")
    classes: dict[int, list[Remaining]] = {}
    for batch in batches:
        classes.setdefault(batch.rank, []).append(batch)
    ends: dict[str, float] = {}
    now_s = 0.0
    for rank in sorted(classes):
        now_s = _serve(_by_tenant(classes[rank]), tokens_per_s, now_s, ends)
    return ends


def _by_tenant(batches: Iterable[Remaining]) -> dict[str, deque[tuple[str, float]]]:
    queues: dict[str, deque[tuple[str, float]]] = {}
    for batch in sorted(batches, key=lambda item: (-item.priority, item.created_at, item.batch_id)):
        queues.setdefault(batch.tenant_id, deque()).append((batch.batch_id, batch.tokens))
    return queues


def _serve(
    queues: dict[str, deque[tuple[str, float]]],
    tokens_per_s: float,
    now_s: float,
    ends: dict[str, float],
) -> float:
    """Serves one class from ``now_s`` on; notes the ends, returns the last."""
    served: dict[str, float] = dict.fromkeys(queues, 0.0)  # of the batch at the head
    while queues:
        share = tokens_per_s / len(queues)
        tenant = min(queues, key=lambda name: queues[name][0][1] - served[name])
        step_tokens = max(0.0, queues[tenant][0][1] - served[tenant])
        now_s += step_tokens / share
        for name in queues:
            served[name] += step_tokens
        batch_id, _ = queues[tenant].popleft()
        ends[batch_id] = now_s
        served[tenant] = 0.0
        if not queues[tenant]:
            del queues[tenant]
    return now_s


@dataclass(frozen=True, kw_only=True, slots=True)
class RateEvidence:
    """What is known of how fast a model's lines are done, in estimated tokens a second.

    ``committed``: by lines committed lately. ``told``: what its pods say they serve. ``before``:
    the last rate that was measured. ``pods``: how many serve the model.
    """

    committed: float = 0.0
    told: float = 0.0
    before: float = 0.0
    pods: int = 0


def rate_of(evidence: RateEvidence, *, chunk_tokens: int) -> float:
    """The best guess at a rate, above 0: the first evidence there is.

    Without any it is what a chunk is meant to be (§8.4): about a minute of spare capacity a pod.
    """
    for known in (evidence.committed, evidence.told, evidence.before):
        if known > 0:
            return known
    return max(1, evidence.pods) * chunk_tokens / 60.0


def margin_s(end_at: float | None, *, deadline_at: float, now_s: float) -> float:
    """Seconds from the expected end to the deadline; negative: it is missed, or will be."""
    return deadline_at - (now_s if end_at is None else max(end_at, now_s))


def is_missed(end_at: float | None, *, deadline_at: float, now_s: float) -> bool:
    """Whether a batch that is expected to end then misses its deadline, or has."""
    return margin_s(end_at, deadline_at=deadline_at, now_s=now_s) < 0


def least(values: Mapping[str, float], limit: int) -> list[str]:
    """The keys with the smallest values, at most ``limit``."""
    return sorted(values, key=lambda key: (values[key], key))[:limit]
