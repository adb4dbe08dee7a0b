"""Whether the volume under the spool takes anything: what is told of it, when it is tried again.

Stores nothing: that is the spool's.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from weir_agent.chunks.spool import DiskFullError, NoRoomError, Spool

log = structlog.get_logger(__name__)

NO_ROOM_S = 10.0


class Disk:
    """The volume of one agent's spool.

    ``failed``: it refused a write, and all work stops until it has room. ``short``: it lacks room
    for what is promised to held chunks, or for any chunk, or does not say what it has.
    """

    def __init__(self, spool: Spool, *, clock: Callable[[], float]) -> None:
        self._spool = spool
        self._clock = clock
        self._no_room_until_s = 0.0
        self.failed = False
        self.short = False

    @property
    def full(self) -> bool:
        """True while the agent says `disk_full`."""
        return self.failed or self.short

    def bytes_left(self, *, idle: bool) -> int:
        """Bytes that new chunks may reserve now; ``idle``: nothing else is stored."""
        spool = self._spool
        reason = None
        try:
            left = spool.room_bytes if spool.has_room else 0
            short = spool.volume_full or (idle and not left)
            if short and not self.short:
                reason = spool.lack
        except OSError as error:  # a stale mount, for example
            left, short, reason = 0, True, str(error)
        if short != self.short:
            log.warning("disk.volume", full=short, reason=reason)
            self.short = short
        return 0 if self._clock() < self._no_room_until_s else left

    def no_room_for(self, chunk_id: str, error: NoRoomError) -> None:
        """One chunk did not fit; for a while none is asked for."""
        log.warning("chunk.no_room", chunk_id=chunk_id, reason=str(error))
        self._pause()

    def refused(self, error: DiskFullError | OSError) -> bool:
        """It took no more; True when that is news."""
        if self.failed:
            return False
        log.error("disk.full", reason=str(error))
        self.failed = True
        self._pause()
        return True

    def try_again(self) -> None:
        """Nothing is held: goes on where it has room; a read-only one has, and fails once more."""
        if not self.failed or self._clock() < self._no_room_until_s:
            return
        try:
            has_room = self._spool.has_room
        except OSError:
            has_room = False
        if has_room:
            log.info("disk.has_room")
            self.failed = False

    def _pause(self) -> None:
        self._no_room_until_s = self._clock() + NO_ROOM_S
