"""Gauges of what is read from the database: out of date they are left out of `/metrics`.

Replicas' series are joined by max: one that lost the database would hold up what it last read.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain

from prometheus_client import Gauge, Metric
from prometheus_client.registry import Collector

STALE_AFTER_S = 120.0  # twice the longest pause between two readings, `poll_s`


class Levels:
    """Gauges that one task sets together; whoever sets them says so."""

    def __init__(self, *gauges: Gauge) -> None:
        described = chain.from_iterable(gauge.describe() for gauge in gauges)
        self._names = frozenset(family.name for family in described)
        self._told_s: float | None = None

    def told(self) -> None:
        """They have been set."""
        self._told_s = time.monotonic()

    def stale(self) -> frozenset[str]:
        """The names of those that are out of date."""
        told_s = self._told_s
        late = told_s is not None and time.monotonic() - told_s > STALE_AFTER_S
        return self._names if late else frozenset()


class Current(Collector):
    """What another collector says, without the levels that are out of date."""

    def __init__(self, source: Collector, levels: Iterable[Levels]) -> None:
        self._source = source
        self._levels = tuple(levels)

    def collect(self) -> Iterator[Metric]:
        """The families that are current."""
        stale = frozenset().union(*(levels.stale() for levels in self._levels))
        return (family for family in self._source.collect() if family.name not in stale)
