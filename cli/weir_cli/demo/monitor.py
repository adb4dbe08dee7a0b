"""Watches an arm while it runs, and shows it: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live

from weir_cli.demo.view import KvLevel, Latency, Snapshot, panel, plain_line
from weir_cli.loadlab.live import LiveLatency
from weir_cli.loadlab.scrape import parse_page, read_page
from weir_cli.loadlab.streaming import HttpError, Observer

REFRESH_S = 0.5
_READ = (
    "weir_kv_total_blocks",
    "weir_kv_blocks",
    "weir_offline_kv_threshold_blocks",
    "weir_tokens_total",
)
PLAIN_LINE_EVERY_S = 5.0


class Screen:
    """Where snapshots go."""

    def __init__(self, console: Console) -> None:
        """Nothing is shown before the first snapshot."""
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._last_line_s = float("-inf")

    def __enter__(self) -> Self:
        """Takes the terminal, if there is one."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives the terminal back."""
        if self._console.is_terminal:
            self._live.stop()

    def say(self, text: str) -> None:
        """One lasting line."""
        self._console.print(text, markup=False)

    def show(self, snapshot: Snapshot) -> None:
        """The current state; without a terminal one line every few seconds."""
        if self._console.is_terminal:
            self._live.update(panel(snapshot), refresh=True)
        elif time.monotonic() - self._last_line_s >= PLAIN_LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            self._console.print(plain_line(snapshot), markup=False)


@dataclass(kw_only=True)
class BatchProgress:
    """What the batch client last heard."""

    status: str = ""
    done: int = 0
    failed: int = 0
    total: int = 0
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    drained_s: float = inf

    def is_drained(self, now_s: float) -> None:
        """No line of it is left to run; the first time counts."""
        if not self.drained.is_set():
            self.drained_s = now_s
            self.drained.set()


@dataclass(kw_only=True)
class Monitor:
    """Collects one arm's live facts. ``metrics_port`` is an agent's, None for a stock server."""

    phase: str
    duration_s: float
    metrics_port: int | None = None
    batch: BatchProgress = field(default_factory=BatchProgress)
    latency: LiveLatency = field(default_factory=LiveLatency)
    online_sent: int = 0

    def watch(self, name: str, due_s: float) -> Observer:
        """The observer of one online request, for the load generator."""
        self.online_sent += 1
        return self.latency.watch(name, due_s)

    @contextlib.asynccontextmanager
    async def showing(self, screen: Screen) -> AsyncIterator[Self]:
        """Shows the arm while the block runs."""
        task = asyncio.create_task(self._loop(screen))
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _loop(self, screen: Screen) -> None:
        started_s = time.monotonic()
        tokens_before: tuple[float, float] | None = None
        rate = 0.0
        while True:
            kv, tokens = await self._scrape()
            now_s = time.monotonic()
            if tokens is not None:
                if tokens_before is not None:
                    rate = _smoothed(rate, tokens_before, (now_s, tokens))
                tokens_before = (now_s, tokens)
            screen.show(self._snapshot(now_s, started_s, kv, rate))
            await asyncio.sleep(REFRESH_S)

    async def _scrape(self) -> tuple[KvLevel | None, float | None]:
        if self.metrics_port is None:
            return None, None
        try:
            samples = parse_page(await read_page("127.0.0.1", self.metrics_port, names=_READ))
        except (OSError, HttpError):
            return None, None

        def value(name: str, *labels: tuple[str, str]) -> float:
            return samples.get((name, labels), 0.0)

        kv = KvLevel(
            total_blocks=int(value("weir_kv_total_blocks")),
            online_blocks=int(value("weir_kv_blocks", ("class", "online"))),
            offline_blocks=int(value("weir_kv_blocks", ("class", "offline"))),
            threshold_blocks=int(value("weir_offline_kv_threshold_blocks")),
        )
        served = value("weir_tokens_total", ("class", "offline"), ("kind", "served"))
        return kv if kv.total_blocks else None, served

    def _snapshot(
        self, now_s: float, started_s: float, kv: KvLevel | None, rate: float
    ) -> Snapshot:
        ttft, tbt = self.latency.ttft(now_s), self.latency.tbt(now_s)
        return Snapshot(
            elapsed_s=now_s - started_s,
            duration_s=self.duration_s,
            phase=self.phase,
            latency=Latency(
                ttft_p50_s=ttft.p50_s,
                ttft_p99_s=ttft.p99_s,
                tbt_mean_s=tbt.mean_s,
                tbt_p99_s=tbt.p99_s,
            ),
            kv=kv,
            batch_status=self.batch.status,
            lines_done=self.batch.done,
            lines_failed=self.batch.failed,
            lines_total=self.batch.total,
            offline_tokens_per_s=rate,
            online_sent=self.online_sent,
        )


def _smoothed(rate: float, before: tuple[float, float], after: tuple[float, float]) -> float:
    """Tokens a second over about the last ten readings."""
    span_s = after[0] - before[0]
    now = max(0.0, after[1] - before[1]) / span_s if span_s > 0 else 0.0
    return now if rate == 0 else 0.85 * rate + 0.15 * now
