"""When batches will end, by the order in which dispatch serves them: pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Remaining:
    """What is left of a running batch. ``rank``: its deadline class, 0 first.

    ``services``: those whose pods may run it.
    """

    batch_id: str
    tenant_id: str
    rank: int
    priority: int
    created_at: float
    tokens: float
    services: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """The pods of services that the same batches may use, and how fast they do such work."""

    services: frozenset[str]
    tokens_per_s: float

    def __post_init__(self) -> None:
        if self.tokens_per_s <= 0:
            raise ValueError(f"tokens_per_s is {self.tokens_per_s}, must be above 0")


def pooled(used: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Parts the services so that each of the sets ``used`` is made of whole parts, few of them."""
    users: dict[str, set[int]] = {}
    for number, services in enumerate(used):
        for service in services:
            users.setdefault(service, set()).add(number)
    parts: dict[frozenset[int], set[str]] = {}
    for service, numbers in users.items():
        parts.setdefault(frozenset(numbers), set()).add(service)
    return [frozenset(part) for part in parts.values()]


def seconds_to_end(batches: Iterable[Remaining], pools: Iterable[Pool]) -> dict[str, float]:
    """Seconds until each batch ends, when the pools go on at their rates.

    In each pool a deadline class waits for those before it; within a class the tenants share the
    rate equally, and a tenant's batches follow each other. That is dispatch's own order
    (`dispatch.order`), but for what changes on the way: a batch that becomes urgent, or that waited
    too long. A batch that several pools may run is run by all of them at once. One that none may
    run is left out.
    """
    runs = _runs(batches)
    queues = [(pool.tokens_per_s, _Queue(runs, pool)) for pool in pools]
    ends: dict[str, float] = {}
    now_s = 0.0
    while speeds := _speeds(queues):
        ending = min(speeds, key=lambda run: run.left / speeds[run])
        step_s = ending.left / speeds[ending]
        for run, speed in speeds.items():
            for batch_id, tokens in run.serve(inf if run is ending else step_s * speed):
                ends[batch_id] = now_s + tokens / speed
        now_s += step_s
    return ends


class _Run:
    """Batches of a tenant and class that follow each other, and that the same services may run.

    They are looked at together: there may be tens of thousands.
    """

    def __init__(self, first: Remaining) -> None:
        self.key = _kind(first)
        self.tenant_id, self.rank, self.services = self.key
        self._marks: deque[tuple[str, float]] = deque()  # each ends when so much is served
        self._tokens = 0.0
        self._served = 0.0

    @property
    def left(self) -> float:
        """Tokens that are to be served."""
        return self._tokens - self._served

    @property
    def is_over(self) -> bool:
        """Whether all have ended."""
        return not self._marks

    def add(self, batch: Remaining) -> None:
        """One more, after the others."""
        self._tokens += batch.tokens
        self._marks.append((batch.batch_id, self._tokens))

    def serve(self, tokens: float) -> list[tuple[str, float]]:
        """Serves so many tokens; the batches that end, each with how many of them it took."""
        before, self._served = self._served, min(self._tokens, self._served + tokens)
        ended = []
        while self._marks and (self._marks[0][1] <= self._served):
            batch_id, mark = self._marks.popleft()
            ended.append((batch_id, mark - before))
        return ended


def _kind(batch: Remaining) -> tuple[str, int, frozenset[str]]:
    return batch.tenant_id, batch.rank, batch.services


def _runs(batches: Iterable[Remaining]) -> list[_Run]:
    """The batches by class, and each tenant's in its order."""
    runs: list[_Run] = []
    for batch in sorted(
        batches, key=lambda it: (it.rank, it.tenant_id, -it.priority, it.created_at, it.batch_id)
    ):
        if not runs or runs[-1].key != _kind(batch):
            runs.append(_Run(batch))
        runs[-1].add(batch)
    return runs


def _speeds(queues: Iterable[tuple[float, _Queue]]) -> dict[_Run, float]:
    """Tokens a second of each run that is served now."""
    speeds: dict[_Run, float] = {}
    for tokens_per_s, queue in queues:
        heads = queue.heads()
        for run in heads:
            speeds[run] = speeds.get(run, 0.0) + tokens_per_s / len(heads)
    return speeds


class _Queue:
    """What a pool may run, in its order."""

    def __init__(self, runs: Iterable[_Run], pool: Pool) -> None:
        classes: dict[int, dict[str, deque[_Run]]] = {}
        for run in runs:
            if pool.services <= run.services:
                tenants = classes.setdefault(run.rank, {})
                tenants.setdefault(run.tenant_id, deque()).append(run)
        self._classes = deque(classes.values())

    def heads(self) -> list[_Run]:
        """What each tenant of the first class has served now."""
        while self._classes:
            tenants = self._classes[0]
            for tenant, queue in list(tenants.items()):
                while queue and queue[0].is_over:
                    queue.popleft()
                if not queue:
                    del tenants[tenant]
            if tenants:
                return [queue[0] for queue in tenants.values()]
            self._classes.popleft()
        return []


@dataclass(frozen=True, kw_only=True, slots=True)
class RateEvidence:
    """What is known of how fast pods do a model's lines, in estimated tokens a second.

    ``committed``: by lines committed lately. ``told``: what they say they serve. ``before``: the
    last rate that was measured. ``pods``: how many serve the model.
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
