"""A sync: most are answered from memory, those that move leases by one transaction.

A sync needs the database when the process is new here, what the agent holds is not what it was
given, it reports or returns something, or it has room and there is work. Leases are renewed for
many agents at once (`Registry.renew`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from weir_controlplane.agents import metrics
from weir_controlplane.agents.announced import AnnouncedModels
from weir_controlplane.agents.history import DemandLog
from weir_controlplane.agents.pace import Pace
from weir_controlplane.agents.pods import PodPolicies
from weir_controlplane.agents.registry import AgentEntry, Registry, policy_view
from weir_controlplane.agents.schemas import (
    Cancel,
    Lease,
    PolicyReply,
    SyncReply,
    SyncRequest,
)
from weir_controlplane.agents.translate import lease_of, room_of, work_of
from weir_controlplane.dispatch.batch_view import Pod
from weir_controlplane.dispatch.bounds import MAX_PAUSE_S, RENEW_AFTER_S
from weir_controlplane.dispatch.errors import StaleIncarnationError, StaleSequenceError
from weir_controlplane.dispatch.settle import settle
from weir_controlplane.dispatch.view import WorkView
from weir_controlplane.dispatch.work import Grant, Settled
from weir_controlplane.errors import OverloadedError
from weir_controlplane.services import Nudge
from weir_controlplane.store.clock import DatabaseTime
from weir_controlplane.store.database import Database

MAX_SYNCS = 256
SETTLING = 6  # transactions of syncs at once: commits and clients need connections too
MAX_WAITING = 12  # syncs that wait for one; beyond, new chunks are for a later sync
CHUNKS_TOPIC = "chunks"


class AgentService:
    """Answers syncs on one replica."""

    def __init__(
        self,
        *,
        database: Database,
        nudge: Nudge,
        policies: PodPolicies,
        log: DemandLog,
        default_tenant: str | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.database = database
        self.nudge = nudge
        self.registry = Registry()
        self.view = WorkView(default_tenant=default_tenant)
        self._default_tenant = default_tenant
        self.log = log
        self.policies = policies
        self.clock_s = clock_s
        self.time = DatabaseTime(clock_s)
        self.pace = Pace()
        self._in_flight = 0
        self._settling = asyncio.Semaphore(SETTLING)
        self._waiting = 0
        self._announced = AnnouncedModels()

    async def sync(self, agent_id: str, request: SyncRequest) -> SyncReply:
        """The answer to a sync.

        Raises:
            StaleIncarnationError: a newer process has the agent's id.
            StaleSequenceError: a later sync was seen.
            OverloadedError: too many syncs are in flight.
        """
        if self._in_flight >= MAX_SYNCS:
            raise OverloadedError("too many syncs at once", retry_after_s=self.pace.retry_after_s())
        begun_s = self.clock_s()
        self._in_flight += 1
        try:
            entry = self.registry.entry(agent_id)
            async with entry.lock:
                return await self._sync(entry, request)
        finally:
            self._in_flight -= 1
            took_s = self.clock_s() - begun_s
            self.pace.took(took_s)
            metrics.SYNC_SECONDS.observe(took_s)

    async def _sync(self, entry: AgentEntry, request: SyncRequest) -> SyncReply:
        now_s = self.clock_s()
        self._refuse_stale(entry, request)
        # Before the agent is known: who sees it serve may name its models at once.
        await self._announced.note(self.database, request)
        wanted = self._plan(entry, request)
        settled: Settled | None = None
        try:
            if wanted or self._needs_database(entry, request, now_s):
                settled = await self._settle(entry, request, wanted)
        finally:
            self.view.settled(wanted, () if settled is None else settled.grants)
        (metrics.SYNCS_FROM_MEMORY if settled is None else metrics.SYNCS_FROM_DATABASE).inc()
        entry.note(request, now_s)
        db_now_s = self.time.now_s()
        if request.telemetry is not None and request.telemetry.total_blocks:
            if not self.log.knows(entry.agent_id):
                await self.log.load(self.database, entry.agent_id, db_now_s)
            self.log.record(entry.agent_id, db_now_s, request.telemetry.online_kv_blocks)
        policy = self.policies.decide(entry, db_now_s)
        return SyncReply(
            incarnation=entry.incarnation,
            next_sync_s=self.pace.next_sync_s(),
            policy=None if policy is None else PolicyReply.model_validate(policy_view(policy)),
            chunks=self._leases(entry, () if settled is None else settled.grants),
            adopted=self._leases(entry, () if settled is None else settled.adopted),
            lost=[] if settled is None else list(settled.lost),
            cancel=self._cancels(entry),
            deaths_accepted=[] if settled is None else list(settled.deaths_accepted),
        )

    @staticmethod
    def _refuse_stale(entry: AgentEntry, request: SyncRequest) -> None:
        """Refuses what this replica knows to be old; the database has the last word.

        Raises:
            StaleIncarnationError: a newer process has the agent's id.
            StaleSequenceError: a later sync was seen.
        """
        if request.incarnation is None:
            return
        if request.incarnation < entry.incarnation:
            raise StaleIncarnationError(entry.agent_id, entry.incarnation)
        if request.incarnation == entry.incarnation and request.sequence <= entry.sequence:
            raise StaleSequenceError(entry.sequence)

    def _plan(self, entry: AgentEntry, request: SyncRequest) -> list[str]:
        if self._waiting > MAX_WAITING:
            return []  # policies must not wait for a slow database; this agent asks again soon
        if self.view.is_empty or request.state != "serving" or request.room.lines == 0:
            return []
        now_s = self.time.now_s()
        paused = entry.paused_until is not None and entry.paused_until > now_s
        known = request.incarnation is not None and request.incarnation == entry.incarnation
        if paused or not known or not entry.may_run:
            return []
        entry.service, entry.state, entry.seen_at = request.service, "serving", self.clock_s()
        entry.models = {model.name: model.revision for model in request.models}
        pod = Pod(
            incarnation=entry.incarnation,
            service=request.service,
            models=entry.models,
            room=room_of(request),
            suspects_of=self.registry.suspects_of(entry, self.clock_s(), now_s)
            if self.view.has_suspects
            else frozenset(),
            holds_solo=any(item.solo for item in entry.holds.values()),
            held=len(request.chunks),
        )
        return self.view.plan(pod, now_s) if self.view.has_work(pod) else []

    def _needs_database(self, entry: AgentEntry, request: SyncRequest, now_s: float) -> bool:
        if request.incarnation is None or request.incarnation != entry.incarnation:
            return True
        if entry.paused_until is not None and entry.paused_until > self.time.now_s() + MAX_PAUSE_S:
            return True  # of a clock that was ahead: the database has been set right, or will be
        if request.deaths or request.returned:
            return True
        held = {(item.chunk_id, item.attempt) for item in request.chunks}
        given = {(chunk_id, item.attempt) for chunk_id, item in entry.holds.items()}
        if held != given:
            return True
        # Renewal is done for many at once; here only when that has not worked.
        return bool(held) and now_s - entry.renewed_at >= 1.5 * RENEW_AFTER_S

    async def _settle(
        self, entry: AgentEntry, request: SyncRequest, wanted: Iterable[str]
    ) -> Settled:
        work = work_of(
            entry.agent_id, request, wanted=tuple(wanted), default_tenant=self._default_tenant
        )
        self._waiting += 1
        try:
            async with self._settling:
                settled = await settle(self.database, work)
        finally:
            self._waiting -= 1
        self.time.read(settled.now_s)
        entry.incarnation = settled.incarnation
        entry.holds = dict(settled.holds)
        entry.cancels = dict(settled.cancel)
        entry.paused_until = settled.paused_until
        entry.renewed_at = self.clock_s()
        grants = (*settled.grants, *settled.adopted)
        self.view.granted(settled.incarnation, grants, settled.now_s)
        if settled.released or settled.deaths_accepted:
            await self.nudge.send(CHUNKS_TOPIC)
        return settled

    def closed(self, chunk_id: str, batch_id: str | None) -> None:
        """Notes that a commit was answered: the chunk is nobody's any more."""
        self.view.committed(chunk_id, batch_id)
        for entry in self.registry.agents.values():
            entry.holds.pop(chunk_id, None)

    def _leases(self, entry: AgentEntry, grants: Iterable[Grant]) -> list[Lease]:
        return [
            lease_of(
                item,
                service=entry.service,
                remaining_lines=self.view.remaining_lines(item.batch_id),
            )
            for item in grants
        ]

    def _cancels(self, entry: AgentEntry) -> list[Cancel]:
        """Chunks to stop: what the last transaction said and what was seen since."""
        held = {chunk_id: item.batch_id for chunk_id, item in entry.holds.items()}
        found = dict(self.view.cancels(held)) | dict(entry.cancels)
        return [
            Cancel(chunk_id=chunk_id, reason=reason)
            for chunk_id, reason in found.items()
            if chunk_id in held
        ]
