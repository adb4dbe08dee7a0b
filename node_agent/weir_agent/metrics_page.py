"""The page of /metrics, made a piece at a time.

Tokens of online requests pass through the same event loop: they would wait for all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector


class _One(Collector):
    """A page of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        yield self._metric


async def metrics_page(registries: Iterable[CollectorRegistry], query: bytes) -> bytes:
    """Everything in the registries, in Prometheus text.

    Each ``name[]`` of the query string names a series, as in Prometheus's own clients: then those
    are all.
    """
    names = parse_qs(query.decode("latin-1")).get("name[]")
    page: list[bytes] = []
    for registry in registries:
        found = registry if names is None else registry.restricted_registry(names)
        for metric in found.collect():
            page.append(generate_latest(_One(metric)))
            await asyncio.sleep(0)
    return b"".join(page)
