"""All leased chunks: taken, delivered, cancelled, handed back, as the control plane says.

How their lines reach the engine belongs to ``feeder``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

import structlog

from weir_agent import wire
from weir_agent.chunks.cut_off import CutOff
from weir_agent.chunks.delivery import Deliverer
from weir_agent.chunks.disk import Disk
from weir_agent.chunks.held import HeldChunk
from weir_agent.chunks.lines import LineRunner
from weir_agent.chunks.pace import Pace
from weir_agent.chunks.pool import LinePool
from weir_agent.chunks.slots import Slots
from weir_agent.chunks.spool import DiskFullError, NoRoomError, Spool
from weir_agent.control_plane import ControlPlane
from weir_agent.journal import CrashJournal
from weir_agent.metrics import AgentMetrics

log = structlog.get_logger(__name__)

LOOKAHEAD = 4
AHEAD_S = 120.0
MIN_HELD_LINES = 64
MAX_CHUNKS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkLimits:
    """How much is leased at once."""

    max_held_lines: int
    max_held_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkParts:
    """The collaborators of the work."""

    control_plane: ControlPlane
    spool: Spool
    journal: CrashJournal
    lines: LineRunner
    deliverer: Deliverer
    pool: LinePool
    metrics: AgentMetrics
    random: Random


class ChunkWork:
    """The chunks that this agent holds."""

    def __init__(
        self,
        parts: WorkParts,
        limits: WorkLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._limits = limits
        self.chunks: dict[str, HeldChunk] = {}
        self._returned: dict[str, wire.ReturnedChunk] = {}
        self._closers: set[asyncio.Task[None]] = set()
        self._clock = clock
        self._slots = Slots(clock=clock)
        self._pace = Pace()
        self.disk = Disk(parts.spool, clock=clock)
        self.may_fetch, self.may_fill = asyncio.Event(), asyncio.Event()
        self._settled = False  # before, the disk holds what an earlier process stored
        self.draining = False
        self.engine_gone = False
        self.cut_off = CutOff()

    # What the sync reads and tells.

    def room(self) -> wire.Room:
        """How much more work can be taken: two minutes of it, and something for every slot.

        An agent that holds nothing has room for the largest chunk; one that may run nothing has
        none (its policy comes all the same).
        """
        bytes_left = self.disk.bytes_left(idle=self._settled and not self.chunks)
        if not (self.able and self.slots > 0 and bytes_left) or self._slots.were_stuck:
            return wire.Room(lines=0, tokens=0, result_bytes=0)
        most = self._limits.max_held_lines
        if self.chunks:
            rate = self._pace.per_s(self._clock())
            wanted = max(MIN_HELD_LINES, 2 * LOOKAHEAD * self.slots, round(rate * AHEAD_S))
            most = min(most, wanted)
        lines = sum(chunk.lines_left for chunk in self.chunks.values())
        tokens = sum(chunk.tokens_left for chunk in self.chunks.values())
        return wire.Room(
            lines=max(0, most - lines) if len(self.chunks) < MAX_CHUNKS else 0,
            tokens=max(0, self._limits.max_held_tokens - tokens),
            result_bytes=bytes_left,
            line_result_bytes=self._parts.spool.line_bytes,
        )

    def held(self) -> tuple[wire.HeldChunk, ...]:
        """Every lease, until its commit is answered."""
        return tuple(chunk.report() for chunk in self.chunks.values())

    def returned(self) -> tuple[wire.ReturnedChunk, ...]:
        """Leases to hand back; they stay in the list until a sync with them succeeded."""
        return tuple(self._returned.values())

    def returned_was_read(self, chunks: tuple[wire.ReturnedChunk, ...]) -> None:
        """A sync with these hand-backs succeeded."""
        for chunk in chunks:
            if self._returned.get(chunk.chunk_id) == chunk:
                del self._returned[chunk.chunk_id]

    async def read_ahead(self, leases: Iterable[wire.Lease]) -> None:
        """Reads what is stored of chunks that are about to be taken: it may be much."""
        for lease in leases:
            await self._parts.spool.read_ahead(lease.chunk_id)

    def take(self, lease: wire.Lease) -> None:
        """A chunk was leased to this agent, or a new attempt at one that it holds."""
        known = self.chunks.get(lease.chunk_id)
        if known is not None:
            if known.lease.attempt >= lease.attempt:
                return
            self._forget(known)
        if not self.able:
            self._hand_back(lease)
            return
        try:
            file = self._parts.spool.open(lease)
        except (DiskFullError, OSError) as error:
            if isinstance(error, NoRoomError):
                self.disk.no_room_for(lease.chunk_id, error)
            else:
                self.disk_is_full(error)
            self._hand_back(lease)
            return
        self.chunks[lease.chunk_id] = HeldChunk(lease, file, taken_s=self._clock())
        log.info(
            "chunk.taken",
            chunk_id=lease.chunk_id,
            attempt=lease.attempt,
            lines=lease.lines,
            stored=len(file.finished),
            solo=lease.solo,
        )
        self.wake()

    def drop(self, chunk_id: str) -> None:
        """The lease is lost: the work and what is stored of it go."""
        chunk = self.chunks.get(chunk_id)
        if chunk is not None:
            log.info("chunk.lost", chunk_id=chunk_id, attempt=chunk.lease.attempt)
            self._forget(chunk)
        self._parts.spool.drop(chunk_id)

    def cancel(self, chunk_id: str, reason: str) -> None:
        """The work must stop; what is finished is committed."""
        chunk = self.chunks.get(chunk_id)
        if chunk is None or chunk.closing is not None:
            return
        log.info("chunk.cancelled", chunk_id=chunk_id, reason=reason)
        self._close(chunk)

    def drop_all(self) -> None:
        """This process holds no lease any more."""
        for chunk_id in list(self.chunks):
            self.drop(chunk_id)

    def keep_adopted(self) -> None:
        """What an earlier process stored of chunks that are not held is of no use."""
        self._settled = True
        try:
            gone = self._parts.spool.keep_only(frozenset(self.chunks))
        except OSError as error:
            log.warning("spool.not_cleaned", reason=str(error))
            return  # the next process tries again
        if gone:
            log.info("spool.dropped", chunks=len(gone))

    def set_slots(self, slots: int, *, idle: bool = False) -> None:
        """How many offline requests may run at once; said again every second by a living engine."""
        self.cut_off.engine_answers()
        if self._slots.set(slots, idle=idle):
            self.wake()
        for chunk in self._slots.given_up(self.chunks.values()):
            self._close(chunk)

    async def hand_back(self, *, within_s: float) -> None:
        """Stops all work: finished lines are committed, leases without any are returned.

        What the control plane did not answer in time stays on disk for the next process.
        """
        self.draining = True
        for chunk in list(self.chunks.values()):
            if chunk.closing is None:
                self._close(chunk)
        if self._closers:
            await asyncio.wait(self._closers, timeout=within_s)
        self.leave()

    def leave(self) -> None:
        """Delivers nothing any more: what is stored waits on disk for the next process."""
        for closer in self._closers:
            closer.cancel()

    def wake(self) -> None:
        """There may be something to fetch or to run."""
        self.may_fetch.set()
        self.may_fill.set()

    @property
    def slots(self) -> int:
        """Offline requests that may run at once."""
        return self._slots.now

    @property
    def able(self) -> bool:
        """False while no line may enter the engine and no chunk may be taken."""
        return not (self.draining or self.disk.failed or self.engine_down)

    @property
    def engine_down(self) -> bool:
        """True when the engine is dead, and while it may be ending."""
        return self.engine_gone or bool(self.cut_off)

    @property
    def solo(self) -> HeldChunk | None:
        """A chunk whose lines must run alone; others go on while its input cannot be had."""
        alone = (c for c in self.chunks.values() if c.lease.solo and c.closing is None)
        return next((chunk for chunk in alone if not chunk.waits_for_input), None)

    def store(self, chunk: HeldChunk, line: int, record: bytes, outcome: str) -> None:
        """A line has a result."""
        try:
            chunk.file.append(line, record)
        except (DiskFullError, OSError) as error:
            self.disk_is_full(error)
            return
        self._parts.metrics.lines.labels(outcome).inc()
        now_s = self._clock()
        self._slots.had_result(now_s)
        self._pace.finished(now_s)
        self.close_if_complete(chunk)

    # Ends of chunks.

    def close_if_complete(self, chunk: HeldChunk) -> None:
        """Delivers the chunk when every line has a result."""
        if chunk.complete and chunk.closing is None:
            self._close(chunk)

    def _close(self, chunk: HeldChunk) -> None:
        self._parts.pool.remove(chunk.lease.chunk_id)
        chunk.closing = asyncio.create_task(self._finish(chunk))
        self._closers.add(chunk.closing)
        chunk.closing.add_done_callback(self._closers.discard)

    async def _finish(self, chunk: HeldChunk) -> None:
        await _cancelled(list(chunk.running.values()))
        if chunk.file.finished:
            try:
                answer = await self._parts.deliverer.deliver(chunk.file, final=chunk.complete)
            except DiskFullError as error:
                self.disk_is_full(error)
                answer = "refused"
            except Exception:  # a fault here must not keep the chunk for ever
                log.exception("chunk.fault", chunk_id=chunk.lease.chunk_id)
                answer = "refused"
            if answer == "refused":
                self._hand_back(chunk.lease)
        else:
            self._hand_back(chunk.lease)
        if self.chunks.get(chunk.lease.chunk_id) is chunk:
            del self.chunks[chunk.lease.chunk_id]
            self._parts.spool.drop(chunk.lease.chunk_id)
        self.wake()

    def _forget(self, chunk: HeldChunk) -> None:
        """Stops everything of a chunk without a word to anyone; what is stored stays."""
        self._parts.pool.remove(chunk.lease.chunk_id)
        for task in (*chunk.running.values(), *([chunk.closing] if chunk.closing else [])):
            task.cancel()
        self.chunks.pop(chunk.lease.chunk_id, None)

    def _hand_back(self, lease: wire.Lease) -> None:
        self._returned[lease.chunk_id] = wire.ReturnedChunk(
            chunk_id=lease.chunk_id, attempt=lease.attempt, nonce=lease.nonce
        )

    def disk_is_full(self, error: DiskFullError | OSError) -> None:
        """The volume took no more: stops all work; what is stored is delivered, which makes room.

        A line whose result was not stored runs again with the rest of its chunk.
        """
        if self.disk.refused(error):
            for chunk in list(self.chunks.values()):
                if chunk.closing is None:
                    self._close(chunk)

    def check_disk(self) -> None:
        """Goes on when the disk has room again."""
        if not self.chunks:
            self.disk.try_again()


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
