"""Lines from the control plane into the engine: fetched in pages, started at a pace, in a window.

The window is four times the slots (design §9); a solo chunk's lines run one at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from weir_agent.backoff import Backoff
from weir_agent.chunks.held import HeldChunk
from weir_agent.chunks.pool import PooledLine
from weir_agent.chunks.spool import DiskFullError
from weir_agent.chunks.work import LOOKAHEAD, ChunkWork, WorkParts
from weir_agent.control_plane import ControlPlaneError
from weir_agent.engine import EngineGoneError, OfflineLine
from weir_agent.waiting import wait_up_to

log = structlog.get_logger(__name__)

PAGE_LINES = 256
IDLE_S = 0.25
MOST_FAILED_FETCHES = 8  # half a minute at most; then it must not fill this pod any more
FETCH_PAUSE_S, FETCH_PAUSE_MOST_S = 0.2, 10.0


class Feeder:
    """Keeps the engine's look-ahead window filled."""

    def __init__(self, work: ChunkWork, parts: WorkParts, *, lines_per_s: float) -> None:
        self._work = work
        self._parts = parts
        self._lines_per_s = lines_per_s
        self._fetch_pause = Backoff(
            first_s=FETCH_PAUSE_S, most_s=FETCH_PAUSE_MOST_S, random=parts.random
        )

    async def run(self) -> None:
        """Keeps the window filled until it is cancelled."""
        async with asyncio.TaskGroup() as loops:  # a slow fetch must not hold lines back
            loops.create_task(self._repeat(self._fetch, self._work.may_fetch))
            loops.create_task(self._repeat(self._fill, self._work.may_fill))

    async def _repeat(self, step: Callable[[], Awaitable[bool]], wake: asyncio.Event) -> None:
        while True:
            try:
                self._work.check_disk()
                busy = await step()
            except Exception:  # a fault here must not stop online traffic
                log.exception("feeder.fault")
                busy = False
            if not busy:
                await wait_up_to(wake, IDLE_S)
                wake.clear()

    @property
    def _running(self) -> int:
        return sum(len(chunk.running) for chunk in self._work.chunks.values())

    async def _fetch(self) -> bool:
        """Fetches one page when the window could soon run dry; True when something changed."""
        if not self._work.able or not self._work.slots:
            return False
        chunk = self._next_to_fetch()
        if chunk is None:
            return False
        full = len(self._parts.pool) >= max(PAGE_LINES // 2, LOOKAHEAD * self._work.slots)
        if full and (chunk is not self._work.solo or chunk.running):
            return False  # else the pool is full of what waits for the solo chunk
        try:
            lines = await self._parts.control_plane.lines(
                chunk.lease, after=chunk.fetched_to, limit=PAGE_LINES
            )
        except ControlPlaneError as error:
            if error.retry:
                chunk.failed_fetches += 1
                log.warning("chunk.not_read", chunk_id=chunk.lease.chunk_id, error=str(error))
                if chunk.failed_fetches >= MOST_FAILED_FETCHES and chunk.waits_for_input:
                    self._work.cancel(chunk.lease.chunk_id, "unreadable")
                await asyncio.sleep(max(self._fetch_pause.pause_s(), error.retry_after_s or 0.0))
            elif self._work.chunks.get(chunk.lease.chunk_id) is chunk:
                log.warning("chunk.unreadable", chunk_id=chunk.lease.chunk_id, error=str(error))
                self._work.drop(chunk.lease.chunk_id)
            return True
        self._fetch_pause.reset()
        if chunk.closing is None and self._work.chunks.get(chunk.lease.chunk_id) is chunk:
            self._parts.pool.add(chunk.lease, chunk.fetched(lines))
            self._work.close_if_complete(chunk)
            self._work.may_fill.set()
        return True

    def _next_to_fetch(self) -> HeldChunk | None:
        """The first of those that failed least: an input that is gone must not stop the others."""
        wanting = [chunk for chunk in self._work.chunks.values() if chunk.wants_lines]
        if self._work.solo in wanting:
            return self._work.solo
        return min(wanting, key=lambda chunk: chunk.failed_fetches, default=None)

    async def _fill(self) -> bool:
        """Starts one line when the window has room; True when one was started."""
        for chunk, line in self._work.cut_off.take():
            self._run_again(chunk, line)
        if not self._work.able:
            return False
        solo = self._work.solo
        window = 1 if solo is not None else LOOKAHEAD * self._work.slots
        if not self._work.slots or self._running >= window:
            return False
        chosen = self._parts.pool.next_lines(
            1, chunk_id=None if solo is None else solo.lease.chunk_id
        )
        if not chosen:
            return False
        self._start(chosen[0])
        await asyncio.sleep(1.0 / self._lines_per_s)
        return True

    def _start(self, pooled: PooledLine) -> None:
        chunk = self._work.chunks.get(pooled.lease.chunk_id)
        if chunk is None or chunk.closing is not None or chunk.lease != pooled.lease:
            return
        line = pooled.line.line
        accepted = self._parts.lines.accept(pooled, deadline_s=chunk.deadline_s)
        if isinstance(accepted, bytes):
            self._work.store(chunk, line, accepted, "refused")
        else:
            self._enter(chunk, accepted)

    def _run_again(self, chunk: HeldChunk, line: OfflineLine) -> None:
        log.warning("line.cut_off", chunk_id=line.chunk_id, line=line.line)
        self._parts.journal.leave(line.chunk_id, line.attempt, line.line)
        if self._work.chunks.get(line.chunk_id) is chunk and chunk.closing is None:
            self._enter(chunk, line)

    def _enter(self, chunk: HeldChunk, line: OfflineLine) -> None:
        try:
            self._parts.journal.enter(line.chunk_id, line.attempt, line.line, solo=line.solo)
        except (DiskFullError, OSError) as error:
            self._work.disk_is_full(error)
            return
        task = asyncio.create_task(self._run_line(chunk, line))
        chunk.running[line.line] = task
        # One that is cancelled before it begins runs none of its own clean-up.
        task.add_done_callback(lambda ended: self._never_began(chunk, line, ended))

    def _never_began(self, chunk: HeldChunk, line: OfflineLine, ended: asyncio.Task[None]) -> None:
        if ended.cancelled() and chunk.running.pop(line.line, None) is not None:
            self._parts.journal.leave(line.chunk_id, line.attempt, line.line)

    async def _run_line(self, chunk: HeldChunk, line: OfflineLine) -> None:
        entered_s = time.perf_counter()
        try:
            record = await self._parts.lines.run(chunk.lease, line)
            self._parts.metrics.offline_line.observe(time.perf_counter() - entered_s)
        except EngineGoneError:
            # It stays in the journal, and alone: whatever followed it would be suspected too.
            self._work.cut_off.add(chunk, line)
            return
        except asyncio.CancelledError:
            self._parts.journal.leave(line.chunk_id, line.attempt, line.line)
            raise
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a fault must not hold the whole chunk up; a panic in Rust is one
            log.exception("line.fault", chunk_id=line.chunk_id, line=line.line)
            record = self._parts.lines.fault(line.line, line.request_id)
        finally:
            chunk.running.pop(line.line, None)
            self._work.wake()
        try:
            self._parts.journal.leave(line.chunk_id, line.attempt, line.line)
            self._work.store(chunk, line.line, record, "answered")
        except Exception:  # a line that neither runs nor has a result would hold its chunk for ever
            log.exception("line.not_stored", chunk_id=line.chunk_id, line=line.line)
            self._work.cancel(line.chunk_id, "fault")
