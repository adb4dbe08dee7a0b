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

    async def deliver(self, file: ChunkFile, *, final: bool) -> Answer:
        """What became of the chunk; ``refused`` means that it must be handed back.

        Raises:
            DiskFullError: what is stored could not be forced to disk.
        """
        # Forcing it to disk may take long, and online responses share this loop.
        sealed = await asyncio.to_thread(file.seal)
        pause = Backoff(first_s=PAUSE_S, most_s=PAUSE_MOST_S, random=self._random)
        while True:
            try:
                answer = await self._once(file.lease, sealed, final=final)
            except ControlPlaneError as error:
                if not error.retry:
                    answer = "stale" if error.code in _LOST_CODES else "refused"
                    log.warning("chunk.refused", chunk_id=file.lease.chunk_id, error=str(error))
                else:
                    await asyncio.sleep(max(pause.pause_s(), error.retry_after_s or 0.0))
                    continue
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

    async def _once(self, lease: wire.Lease, sealed: Sealed, *, final: bool) -> Answer:
        upload_id = await self._control_plane.upload(lease, sealed)
        request = wire.CommitRequest(
            attempt=lease.attempt,
            nonce=lease.nonce,
            upload_id=upload_id,
            lines=sealed.ranges,
            final=final,
        )
        reply = await self._control_plane.commit(lease.chunk_id, request)
        return reply.state
