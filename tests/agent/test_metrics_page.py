"""GET /metrics of an agent: whole, in part, and never in the way of a token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tests.agent.test_online_key import engine
from weir_agent.http import WeirRoutes


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("weir_test_tokens", "Tokens.", ["class"], registry=registry).labels("online").inc(7)
    Gauge("weir_test_blocks", "Blocks.", registry=registry).set(3)
    Histogram("weir_test_seconds", "Seconds.", registry=registry).observe(0.2)
    return registry


async def page(registry: CollectorRegistry, path: str) -> str:
    app = WeirRoutes(engine, registry=registry, unhealthy=lambda: None, unready=lambda: None)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
        answer = await client.get(path)
    assert answer.headers["content-type"].startswith("text/plain")
    return answer.text


async def test_the_page_is_what_one_piece_would_be(registry: CollectorRegistry) -> None:
    text = await page(registry, "/metrics")
    assert text.startswith(generate_latest(registry).decode())
    assert "python_info" in text  # and the process's own registry, where the engine's are


async def test_a_reader_may_ask_for_some_series(registry: CollectorRegistry) -> None:
    text = await page(registry, "/metrics?name[]=weir_test_blocks&name[]=weir_test_tokens_total")
    samples = sorted(line for line in text.splitlines() if not line.startswith("#"))
    assert samples == ["weir_test_blocks 3.0", 'weir_test_tokens_total{class="online"} 7.0']
    assert await page(registry, "/metrics?name[]=weir_unknown") == ""


class Counted(Collector):
    """Two metrics; notes how often the loop had turned when each was asked for."""

    def __init__(self) -> None:
        self.turns = 0
        self.seen: list[int] = []

    def collect(self) -> Iterator[Metric]:
        for name in ("weir_test_a", "weir_test_b"):
            self.seen.append(self.turns)
            yield Metric(name, "A metric.", "gauge")


async def test_the_loop_turns_between_two_metrics() -> None:
    """A page took some 10 ms, and every online token of that time waited for it."""
    counted, registry = Counted(), CollectorRegistry()
    registry.register(counted)
    counted.seen.clear()

    async def turn() -> None:
        while True:
            counted.turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    await page(registry, "/metrics")
    turning.cancel()
    first, second = counted.seen
    assert second > first
