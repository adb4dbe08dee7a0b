"""Takes and keeps the Lease, and answers every write's question: may I?

Time is monotonic and counts from the moment a request was *sent*. Past the renew deadline `check`
refuses; the process then ends (`Watchdog`), since a stuck call cannot be taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any, Protocol

import structlog

from weir_operator.backoff import Clock
from weir_operator.cluster.errors import ClusterError, ConflictError, NotFoundError
from weir_operator.leader.lease import (
    LeaseRecord,
    Sighting,
    decide,
    next_manifest,
    released_manifest,
    sight,
)

log = structlog.get_logger(__name__)


_Write = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class NotLeaderError(Exception):
    """A write was refused because this replica does not lead (any more)."""


class LeaseStore(Protocol):
    """Reads and writes of the one Lease; each raises ``ClusterError`` and has a short timeout."""

    async def read(self) -> Mapping[str, Any]:
        """The Lease; ``NotFoundError`` when there is none."""
        ...

    async def create(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """The Lease as made; ``ConflictError`` when it exists."""
        ...

    async def replace(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """The Lease as replaced; ``ConflictError`` when its version is not the one given."""
        ...


@dataclass(frozen=True, kw_only=True)
class Terms:
    """How the Lease is kept; seconds."""

    namespace: str
    name: str
    lease_s: float
    renew_deadline_s: float
    retry_s: float
    request_timeout_s: float


class Elector:
    """One replica's side of the election."""

    def __init__(
        self,
        store: LeaseStore,
        terms: Terms,
        *,
        identity: str,
        clock: Clock,
        random: Random,
        on_lost: Callable[[], None],
    ) -> None:
        """``on_lost`` ends the process; it is called once, when a leader missed its deadline."""
        self._store = store
        self._terms = terms
        self._clock = clock
        self._random = random
        self._on_lost = on_lost
        self._sighting: Sighting | None = None
        self._record: LeaseRecord | None = None
        self._renewed_at_s: float | None = None
        self._lost = False
        self.identity = identity
        self.leading = asyncio.Event()

    def deadline_s(self) -> float | None:
        """The monotonic time at which this leader must have stopped; None: it does not lead."""
        if self._renewed_at_s is None:
            return None
        return self._renewed_at_s + self._terms.renew_deadline_s

    def may_write(self) -> bool:
        """Whether a write may be sent now."""
        deadline_s = self.deadline_s()
        return not self._lost and deadline_s is not None and self._clock() < deadline_s

    def check(self) -> None:
        """Asked by every write, just before it is sent.

        Raises:
            NotLeaderError: this replica does not lead.
        """
        if not self.may_write():
            raise NotLeaderError(f"{self.identity} does not hold {self._terms.name}")

    async def run(self) -> None:
        """Campaigns, then renews; returns when leadership was lost."""
        while not self._lost:
            await self._try_once()
            if self._expired():
                self._lose()
                return
            await asyncio.sleep(self._pause_s())

    async def release(self) -> None:
        """Gives the Lease back at an orderly end; nothing may be written afterwards.

        It is read first: a renewal that was cut short by the end may have changed it, or does yet.
        """
        self._lost = True
        self._renewed_at_s = None
        try:
            async with asyncio.timeout(self._terms.request_timeout_s):
                while not await self._give_back():
                    pass
        except NotFoundError:
            return
        except (ClusterError, TimeoutError) as error:
            log.warning("leader.release_failed", reason=str(error))

    async def _give_back(self) -> bool:
        """False when the Lease changed between the read and the write."""
        record = LeaseRecord.parse(await self._store.read())
        if record.holder != self.identity:
            return True
        terms = self._terms
        manifest = released_manifest(
            record, namespace=terms.namespace, name=terms.name, now=datetime.now(UTC)
        )
        try:
            await self._store.replace(manifest)
        except ConflictError:
            return False
        return True

    def _pause_s(self) -> float:
        # Jitter keeps standbys from asking at the same moments.
        pause_s = self._terms.retry_s * self._random.uniform(0.8, 1.0)
        deadline_s = self.deadline_s()
        if deadline_s is None:
            return pause_s
        return max(0.0, min(pause_s, deadline_s - self._clock()))

    def _expired(self) -> bool:
        deadline_s = self.deadline_s()
        return deadline_s is not None and self._clock() >= deadline_s

    def _lose(self) -> None:
        self._lost = True
        self._renewed_at_s = None
        log.error("leader.lost", identity=self.identity, lease=self._terms.name)
        self._on_lost()

    async def _try_once(self) -> None:
        terms = self._terms
        limit_s = terms.request_timeout_s
        deadline_s = self.deadline_s()
        if deadline_s is not None:
            limit_s = max(0.0, min(limit_s, deadline_s - self._clock()))
        try:
            async with asyncio.timeout(limit_s):
                await self._step()
        except TimeoutError:
            log.warning("leader.request_timeout", lease=terms.name)
        except ConflictError as error:  # the next read says who was faster
            log.info("leader.conflict", reason=str(error))
        except ClusterError as error:
            log.warning("leader.request_failed", reason=str(error))

    async def _step(self) -> None:
        """One decision and at most one write that succeeds, all within one request timeout.

        A leader that knows the Lease's version renews without reading it first: a change by
        anybody else is a conflict, and then it reads.
        """
        terms = self._terms
        known = self._record
        if self.may_write() and known is not None and known.holder == self.identity:
            try:
                await self._write(known, self._store.replace)
            except (ConflictError, NotFoundError):
                log.info("leader.lease_changed", lease=terms.name)
            else:
                return
        try:
            record = LeaseRecord.parse(await self._store.read())
        except NotFoundError:
            record = None
        now_s = self._clock()
        self._note(record, now_s)
        if self._renewed_at_s is not None and (record is None or record.holder != self.identity):
            self._lose()  # someone took it, or deleted it: never argue
            return
        choice = decide(
            record, self._sighting, me=self.identity, own_lease_s=terms.lease_s, now_s=now_s
        )
        if choice == "wait":
            return
        await self._write(record, self._store.create if choice == "create" else self._store.replace)

    async def _write(self, record: LeaseRecord | None, write: _Write) -> None:
        """Writes the Lease with us as its holder; time counts from the moment of sending."""
        terms = self._terms
        manifest = next_manifest(
            record,
            namespace=terms.namespace,
            name=terms.name,
            me=self.identity,
            lease_s=terms.lease_s,
            now=datetime.now(UTC),
        )
        sent_at_s = self._clock()
        written = LeaseRecord.parse(await write(manifest))
        self._note(written, self._clock())
        self._hold(sent_at_s)

    def _note(self, record: LeaseRecord | None, now_s: float) -> None:
        self._record = record
        self._sighting = None if record is None else sight(self._sighting, record, now_s=now_s)

    def _hold(self, sent_at_s: float) -> None:
        if self._lost:
            return
        first = self._renewed_at_s is None
        self._renewed_at_s = sent_at_s
        if first:
            log.info("leader.acquired", identity=self.identity, lease=self._terms.name)
            self.leading.set()
