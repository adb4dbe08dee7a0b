"""One measured run: both loads on one server, ramps trimmed, counters read at the window's ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from weir_cli.loadlab.feeders import Target, Watcher, feed_online
from weir_cli.loadlab.processes import Server, ServerError
from weir_cli.loadlab.records import OnlineLatency, RequestRecord, online_latency, token_counts
from weir_cli.loadlab.scrape import EngineCounters, engine_counters, parse_page, read_page
from weir_cli.loadlab.workload import OnlineRequest

SLOW_PAGE_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """``measure_s`` count, ``ramp_s`` before and ``tail_s`` after do not; load runs through all."""

    ramp_s: float
    measure_s: float
    tail_s: float

    @property
    def total_s(self) -> float:
        """Ramp, measurement and tail."""
        return self.ramp_s + self.measure_s + self.tail_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What one window showed; rates are tokens a second over the window.

    ``offline_served`` counts prompt and output tokens in the step that serves them,
    ``offline_computed`` leaves out prefix-cache hits. ``online_hit_rate`` is the share of online
    prompt tokens found in the cache. ``ended_s`` is when the run ended, in seconds since 1970
    by the wall clock: it orders runs of different processes.
    """

    window_s: float
    online: OnlineLatency
    online_tokens_per_s: float
    online_hit_rate: float
    offline_served_per_s: float
    offline_computed_per_s: float
    steps_per_s: float
    busy_share: float
    client_cpu_share: float
    preemptions: int
    offline_errors: int
    errors: tuple[str, ...]
    ended_s: float


OfflineFeed = Callable[[Callable[[RequestRecord], None]], Awaitable[None]]
"""Runs offline load until cancelled; its argument takes each record."""


async def snapshot(server: Server) -> EngineCounters:
    """The engine's counters now.

    Raises:
        ServerError: the server took so long to answer that nobody knows when it read them.
    """
    asked_s, cpu_s = time.monotonic(), server.engine_cpu_s()
    page = await read_page(server.host, server.port)
    took_s = time.monotonic() - asked_s
    if took_s > SLOW_PAGE_S:
        raise ServerError(f"/metrics took {took_s:.1f} s: the machine is too busy to measure")
    return engine_counters(parse_page(page), at_s=asked_s + took_s / 2, cpu_s=cpu_s)


async def measure(  # noqa: PLR0913 - two loads, when, and who looks on
    server: Server,
    target: Target,
    *,
    online: Sequence[OnlineRequest],
    offline: OfflineFeed | None,
    window: Window,
    watch: Watcher | None = None,
    closing: asyncio.Event | None = None,
) -> Measurement:
    """Runs both loads through ramp, window and tail, and reduces what they wrote down.

    An online request that was due in the window and has not ended with the tail has failed.
    The window closes early when ``closing`` is set in it: what is measured ends there.
    """
    online_records: list[RequestRecord] = []
    offline_records: list[RequestRecord] = []
    start_s = time.monotonic() + 0.1
    tasks = [
        asyncio.ensure_future(
            feed_online(target, online, start_s=start_s, done=online_records.append, watch=watch)
        )
    ]
    if offline is not None:
        tasks.append(asyncio.ensure_future(offline(offline_records.append)))
    try:
        await _sleep_until(start_s + window.ramp_s, tasks)
        before, client_before_s = await snapshot(server), time.process_time()
        await _sleep_until(start_s + window.ramp_s + window.measure_s, tasks, closing)
        after, client_after_s = await snapshot(server), time.process_time()
        due = sum(before.at_s <= start_s + request.at_s < after.at_s for request in online)
        await _until_answered(online_records, due, before.at_s, after.at_s, window.tail_s)
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
    return reduce(
        before,
        after,
        online_records,
        offline_records,
        client_s=client_after_s - client_before_s,
        ended_s=time.time(),
    )


async def _sleep_until(
    at_s: float, tasks: Sequence[asyncio.Future[None]], closing: asyncio.Event | None = None
) -> None:
    """Sleeps, unless a feeder breaks; an event that comes meanwhile ends it early."""
    sleeping = asyncio.ensure_future(_sleep_beside(at_s, tasks))
    if closing is None or closing.is_set():
        await sleeping
        return
    closed = asyncio.ensure_future(closing.wait())
    try:
        await asyncio.wait({sleeping, closed}, return_when=asyncio.FIRST_COMPLETED)
        if sleeping.done():
            sleeping.result()
    finally:
        sleeping.cancel()
        closed.cancel()


async def _sleep_beside(at_s: float, tasks: Sequence[asyncio.Future[None]]) -> None:
    broken, _ = await asyncio.wait(
        tasks, timeout=max(0.0, at_s - time.monotonic()), return_when=asyncio.FIRST_EXCEPTION
    )
    for task in broken:
        task.result()
    if broken:
        await asyncio.sleep(max(0.0, at_s - time.monotonic()))


async def _until_answered(
    records: Sequence[RequestRecord], due: int, start_s: float, end_s: float, tail_s: float
) -> None:
    """Waits for every request that was due in the window, at most ``tail_s``."""
    deadline_s = time.monotonic() + tail_s
    while time.monotonic() < deadline_s:
        if sum(start_s <= record.sent_s < end_s for record in records) >= due:
            return
        await asyncio.sleep(0.1)


def reduce(
    before: EngineCounters,
    after: EngineCounters,
    online: Sequence[RequestRecord],
    offline: Sequence[RequestRecord],
    *,
    client_s: float,
    ended_s: float,
) -> Measurement:
    """The window between two readings of the counters; offline is what online does not explain."""
    window_s = after.at_s - before.at_s
    generated = after.generation_tokens - before.generation_tokens
    served = after.prompt_tokens - before.prompt_tokens + generated
    computed = after.computed_prompt_tokens - before.computed_prompt_tokens + generated
    tokens = token_counts(online, start_s=before.at_s, end_s=after.at_s)
    # What was due after the window may be cut off: nobody waits for it.
    counted = [record for record in online if record.sent_s < after.at_s]
    errors = [f"{record.name}: {record.error}" for record in (*counted, *offline) if record.error]
    return Measurement(
        window_s=window_s,
        online=online_latency(online, start_s=before.at_s, end_s=after.at_s),
        online_tokens_per_s=tokens.served / window_s,
        online_hit_rate=tokens.hit_rate,
        offline_served_per_s=max(0, served - tokens.served) / window_s,
        offline_computed_per_s=max(0, computed - tokens.computed) / window_s,
        steps_per_s=(after.steps - before.steps) / window_s,
        busy_share=(after.cpu_s - before.cpu_s) / window_s,
        client_cpu_share=client_s / window_s,
        preemptions=after.preemptions - before.preemptions,
        offline_errors=sum(record.error is not None for record in offline),
        errors=tuple(errors[:5]),
        ended_s=ended_s,
    )
