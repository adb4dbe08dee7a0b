"""Offline load as a gateway would throttle it: concurrency by AIMD on measured online latency."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from weir_cli.loadlab.feeders import Target, send_line
from weir_cli.loadlab.records import RequestRecord
from weir_cli.loadlab.workload import OfflineLine


class AimdLimit:
    """A concurrency limit: plus ``increase`` while the SLO holds, times ``decrease`` when it fails.

    Pure. The limit is a float of at least 0; its floor is how many requests may be in flight.
    """

    def __init__(self, *, increase: float = 1.0, decrease: float = 0.5, most: float = 64.0) -> None:
        self.value = 1.0
        self._increase = increase
        self._decrease = decrease
        self._most = most

    def update(self, *, violated: bool) -> float:
        """One control interval."""
        self.value = (
            self.value * self._decrease
            if violated
            else min(self._most, self.value + self._increase)
        )
        return self.value


async def feed_aimd(
    target: Target,
    supply: Callable[[], OfflineLine],
    *,
    violated: Callable[[], bool | None],
    limit: AimdLimit,
    interval_s: float,
    done: Callable[[RequestRecord], None],
) -> None:
    """Keeps ``limit`` requests in flight and moves the limit every ``interval_s``, until cancelled.

    ``violated`` answers whether online latency misses its SLO now; None leaves the limit alone.
    A limit that falls lets requests in flight end; it never aborts them.
    """
    running: set[asyncio.Task[None]] = set()
    next_update_s = time.monotonic() + interval_s
    try:
        while True:
            now_s = time.monotonic()
            if now_s >= next_update_s:
                next_update_s = now_s + interval_s
                verdict = violated()
                if verdict is not None:
                    limit.update(violated=verdict)
            while len(running) < int(limit.value):
                task = asyncio.create_task(send_line(target, supply(), done))
                running.add(task)
                task.add_done_callback(running.discard)
            await asyncio.sleep(0.01)
    finally:
        for task in running:
            task.cancel()
