"""The conversation with the control plane: state up, leases and policy down, once a second.

Level-triggered: every call says all that holds now. Losing the control plane changes nothing here
but the pause before the next attempt.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import structlog

from weir_agent import wire
from weir_agent.backoff import Backoff
from weir_agent.chunks.work import ChunkWork
from weir_agent.control_plane import ControlPlane, ControlPlaneError
from weir_agent.engine import ServedModel
from weir_agent.journal import CrashJournal
from weir_agent.metrics import AgentMetrics
from weir_agent.policy import Lease

log = structlog.get_logger(__name__)

FIRST_PAUSE_S, MOST_PAUSE_S = 0.5, 10.0
LEAST_NEXT_SYNC_S, MOST_NEXT_SYNC_S = 0.1, 60.0
MOST_RETURNED, MOST_DEATHS = 256, 16  # in one call; the next one brings the rest
STALE_INCARNATION = "stale_incarnation"


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncParts:
    """The collaborators of the sync."""

    control_plane: ControlPlane
    work: ChunkWork
    journal: CrashJournal
    metrics: AgentMetrics
    service: str
    models: tuple[ServedModel, ...]
    telemetry: Callable[[], wire.Telemetry]
    on_policy: Callable[[Lease], None]
    random: Random


class SyncLoop:
    """The agent's side of the sync call; ``state`` is what the agent says of itself."""

    def __init__(self, parts: SyncParts, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._parts = parts
        self._clock = clock
        self._boot_id = uuid.uuid4().hex
        self._incarnation: int | None = None
        self._sequence = 0
        self._one_at_a_time = asyncio.Lock()
        self._pause = Backoff(first_s=FIRST_PAUSE_S, most_s=MOST_PAUSE_S, random=parts.random)

    async def run(self) -> None:
        """Syncs until it is cancelled."""
        while True:
            pause_s = await self.once()
            await asyncio.sleep(pause_s)

    async def once(self) -> float:
        """One call; returns the pause before the next one, in seconds."""
        async with self._one_at_a_time:
            try:
                return await self._exchange()
            except Exception:  # a fault here must neither stop online traffic nor cut its drain
                log.exception("sync.fault")
                return MOST_PAUSE_S

    async def last(self) -> None:
        """Tells what is handed back, that which a call on its way still brings included."""
        async with self._one_at_a_time:
            pass
        if self._parts.work.returned():
            await self.once()

    async def _exchange(self) -> float:
        request = self._request()
        sent_s = self._clock()
        try:
            reply = await self._parts.control_plane.sync(request)
        except ControlPlaneError as error:
            self._parts.metrics.syncs.labels(error.code or "unreachable").inc()
            self._refused(error)
            return max(self._pause.pause_s(), error.retry_after_s or 0.0)
        self._pause.reset()
        self._parts.metrics.syncs.labels("ok").inc()
        # Online requests are served meanwhile; what the reply says is then done at once.
        await self._parts.work.read_ahead((*reply.adopted, *reply.chunks))
        self._apply(request, reply, sent_s)
        return bounded_pause_s(reply.next_sync_s)

    def _request(self) -> wire.SyncRequest:
        parts = self._parts
        self._sequence += 1
        room = parts.work.room()
        return wire.SyncRequest(
            boot_id=self._boot_id,
            incarnation=self._incarnation,
            sequence=self._sequence,
            service=parts.service,
            models=tuple(
                wire.Model(
                    name=model.name,
                    revision=model.revision,
                    max_model_len=model.max_model_len_tokens,
                )
                for model in parts.models
            ),
            state=self._state(),
            room=room,
            chunks=parts.work.held(),
            returned=parts.work.returned()[:MOST_RETURNED],
            deaths=parts.journal.deaths()[:MOST_DEATHS],
            telemetry=parts.telemetry(),
        )

    def _state(self) -> wire.AgentState:
        if self._parts.work.engine_down:
            return "engine_down"
        if self._parts.work.draining:
            return "draining"
        return "disk_full" if self._parts.work.disk.full else "serving"

    def _refused(self, error: ControlPlaneError) -> None:
        log.warning("sync.failed", error=str(error), code=error.code)
        if error.code == STALE_INCARNATION:
            # A newer process of this agent exists: what is held here is held no more.
            self._parts.work.drop_all()
            self._boot_id, self._incarnation, self._sequence = uuid.uuid4().hex, None, 0

    def _apply(self, request: wire.SyncRequest, reply: wire.SyncReply, sent_s: float) -> None:
        parts, work = self._parts, self._parts.work
        first, self._incarnation = self._incarnation is None, reply.incarnation
        if reply.policy is not None:
            parts.on_policy(Lease(policy=reply.policy, sent_s=sent_s))
        work.returned_was_read(request.returned)
        for death_id in reply.deaths_accepted:
            parts.journal.accepted(death_id)
        for chunk_id in reply.lost:
            work.drop(chunk_id)
        for lease in (*reply.adopted, *reply.chunks):
            work.take(lease)
        for cancel in reply.cancel:
            work.cancel(cancel.chunk_id, cancel.reason)
        if first:
            log.info("sync.joined", incarnation=reply.incarnation, adopted=len(reply.adopted))
            work.keep_adopted()


def bounded_pause_s(asked_s: float) -> float:
    """The pause that a reply asks for, never so short or long that the agent is of no use."""
    return min(max(asked_s, LEAST_NEXT_SYNC_S), MOST_NEXT_SYNC_S)
