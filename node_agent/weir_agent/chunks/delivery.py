"""A chunk's results to the control plane: upload, then commit, repeated until it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Literal

import structlog

from weir_agent import wire
from weir_agent.backoff import Backoff
from weir_agent.chunks.spool import ChunkFile, Sealed
from weir_agent.control_plane import ControlPlane, ControlPlaneError

log = structlog.get_logger(__name__)

Answer = Literal["accepted", "stale", "gone", "refused"]
PAUSE_S, PAUSE_MOST_S = 0.2, 10.0
# They share connections with the sync, which renews their leases: it must always find one.
MOST_AT_ONCE = 16
UNKNOWN_UPLOAD = "unknown_upload"
# The control plane knows nothing of the chunk any more: whatever is stored is of no use.
_LOST_CODES = frozenset({"stale_lease", "404", "409", "410"})


class Deliverer:
    """Delivers stored results; ``counted`` is told each answer (for metrics)."""

    def __init__(
        self,
        control_plane: ControlPlane,
        *,
        random: Random,
        counted: Callable[[str], None] = lambda _answer: None,
    ) -> None:
        self._control_plane = control_plane
        self._random = random
        self._counted = counted
        self._at_once = asyncio.Semaphore(MOST_AT_ONCE)

    async def deliver(self, file: ChunkFile, *, final: bool) -> Answer:
        """What became of the chunk; ``refused`` means that it must be handed back.

        Raises:
            DiskFullError: what is stored could not be forced to disk.
        """
        # Forcing it to disk may take long, and online responses share this loop.
        sealed = await asyncio.to_thread(file.seal)
        pause = Backoff(first_s=PAUSE_S, most_s=PAUSE_MOST_S, random=self._random)
        upload_id: str | None = None  # kept: a repeated commit need not send the results again
        while True:
            try:
                async with self._at_once:
                    if upload_id is None:
                        upload_id = await self._control_plane.upload(file.lease, sealed)
                    answer = await self._commit(file.lease, sealed, upload_id, final=final)
            except ControlPlaneError as error:
                told = log.bind(chunk_id=file.lease.chunk_id, error=str(error))
                if error.retry or error.code == UNKNOWN_UPLOAD:
                    told.warning("chunk.not_delivered")
                    if error.code == UNKNOWN_UPLOAD:
                        upload_id = None
                    await asyncio.sleep(max(pause.pause_s(), error.retry_after_s or 0.0))
                    continue
                told.warning("chunk.refused")
                answer = "stale" if error.code in _LOST_CODES else "refused"
            self._counted(answer)
            log.info(
                "chunk.delivered",
                chunk_id=file.lease.chunk_id,
                attempt=file.lease.attempt,
                lines=len(sealed.lines),
                final=final,
                answer=answer,
            )
            return answer

    async def _commit(
        self, lease: wire.Lease, sealed: Sealed, upload_id: str, *, final: bool
    ) -> Answer:
        request = wire.CommitRequest(
            attempt=lease.attempt,
            nonce=lease.nonce,
            upload_id=upload_id,
            lines=sealed.ranges,
            final=final,
        )
        reply = await self._control_plane.commit(lease.chunk_id, request)
        return reply.state
