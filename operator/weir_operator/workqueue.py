"""One queue of keys: each at most once, never two workers on one key, bounded and rate-limited.

What a key needs is decided when its turn comes, so any number of events costs one reconcile.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

import structlog

from weir_operator.backoff import Clock, TokenBucket, jittered_s
from weir_operator.planning.types import ObjectKey

log = structlog.get_logger(__name__)

Work = Callable[[ObjectKey], Awaitable[float | None]]
"""Reconciles one key; returns after how many seconds it wants to be called again, or None."""


class RetryError(Exception):
    """The work failed in an expected way and is to be repeated with backoff."""


@dataclass(frozen=True, kw_only=True)
class QueueTerms:
    """``rate_per_s``: most starts a second; ``timeout_s``: how long one piece of work may take."""

    workers: int
    rate_per_s: float
    backoff_first_s: float
    backoff_most_s: float
    timeout_s: float


class WorkQueue:
    """Keys that wait, keys that run, and keys that are due later."""

    def __init__(
        self,
        work: Work,
        terms: QueueTerms,
        *,
        clock: Clock,
        random: Random,
    ) -> None:
        self._work = work
        self._workers = terms.workers
        self._rate = TokenBucket(rate_per_s=terms.rate_per_s, burst=terms.rate_per_s, clock=clock)
        self._first_s = terms.backoff_first_s
        self._most_s = terms.backoff_most_s
        self._timeout_s = terms.timeout_s
        self._clock = clock
        self._random = random
        self._ready: OrderedDict[ObjectKey, None] = OrderedDict()
        self._running: set[ObjectKey] = set()
        self._again: set[ObjectKey] = set()
        self._due: dict[ObjectKey, float] = {}
        self._heap: list[tuple[float, int, ObjectKey]] = []
        self._order = 0
        self._failures: dict[ObjectKey, int] = {}
        self._wake = asyncio.Event()

    @property
    def depth(self) -> int:
        """Keys that are ready and wait for a worker."""
        return len(self._ready) + len(self._again)

    @property
    def delayed(self) -> int:
        """Keys that are due later."""
        return len(self._due)

    def failures(self, key: ObjectKey) -> int:
        """Failures of a key in a row."""
        return self._failures.get(key, 0)

    def add(self, key: ObjectKey) -> None:
        """The key needs a look. While it runs, it runs once more afterwards."""
        if key in self._running:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = None
        self._wake.set()

    def add_after(self, key: ObjectKey, delay_s: float) -> None:
        """The key needs a look after a while; of several delays the shortest holds."""
        if delay_s <= 0:
            self.add(key)
            return
        at_s = self._clock() + delay_s
        if self._due.get(key, float("inf")) <= at_s:
            return
        self._due[key] = at_s
        self._order += 1
        heapq.heappush(self._heap, (at_s, self._order, key))
        self._wake.set()

    async def run(self) -> None:
        """Works until cancelled; running work is cancelled with it."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                pause_s = self._start_ready(group)
                try:
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    def _start_ready(self, group: asyncio.TaskGroup) -> float | None:
        """Starts what may start; returns when to look again, None: only when woken."""
        self._promote_due()
        while self._ready and len(self._running) < self._workers:
            wait_s = self._rate.wait_s()
            if wait_s > 0:
                return wait_s
            key, _ = self._ready.popitem(last=False)
            self._running.add(key)
            group.create_task(self._run_one(key))
        return max(0.0, self._heap[0][0] - self._clock()) if self._heap else None

    def _promote_due(self) -> None:
        now_s = self._clock()
        while self._heap and self._heap[0][0] <= now_s:
            at_s, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == at_s:
                del self._due[key]
                self.add(key)

    async def _run_one(self, key: ObjectKey) -> None:
        delay_s: float | None
        try:
            async with asyncio.timeout(self._timeout_s):
                delay_s = await self._work(key)
        except (RetryError, TimeoutError) as error:
            delay_s = self._fail(key, str(error) or f"no end in {self._timeout_s:g} s")
        except Exception as error:  # one object's defect must not stop the others
            log.exception("reconcile.defect", kind=key.kind, namespace=key.namespace, name=key.name)
            delay_s = self._fail(key, type(error).__name__)
        else:
            self._failures.pop(key, None)
        self._running.discard(key)
        if key in self._again:
            self._again.discard(key)
            if not self.failures(key):
                self.add(key)
        if delay_s is not None:
            self.add_after(key, delay_s)
        self._wake.set()

    def _fail(self, key: ObjectKey, reason: str) -> float:
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        delay_s = jittered_s(
            failures, first_s=self._first_s, most_s=self._most_s, random=self._random
        )
        log.warning(
            "reconcile.failed",
            kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            failures=failures,
            retry_in_s=round(delay_s, 3),
            reason=reason,
        )
        return delay_s
