"""Prometheus metrics of the fleet: each pod's KV level against its threshold, and the syncs."""

from __future__ import annotations

import asyncio
from collections import Counter as Counts
from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

from weir_controlplane.agents.registry import AgentEntry
from weir_controlplane.levels import Levels

COVERAGE = Gauge(
    "weir_forecast_coverage_ratio",
    "Share of spans in the last hour whose peak online KV demand the method covered.",
    ["service", "agent", "method"],
)
WASTE = Gauge(
    "weir_forecast_waste_ratio",
    "Share of KV blocks that the method reserved and online did not use, last hour.",
    ["service", "agent", "method"],
)
ONLINE_KV = Gauge(
    "weir_pod_online_kv_blocks", "KV blocks that online requests hold.", ["service", "agent"]
)
ONLINE_REUSE = Gauge(
    "weir_pod_online_reuse_blocks",
    "Free KV blocks in which online requests are likely to find their prefixes.",
    ["service", "agent"],
)
OFFLINE_KV = Gauge(
    "weir_pod_offline_kv_blocks", "KV blocks that offline alone holds.", ["service", "agent"]
)
TOTAL_KV = Gauge("weir_pod_kv_blocks", "KV blocks of the pod.", ["service", "agent"])
THRESHOLD = Gauge(
    "weir_pod_offline_kv_threshold_blocks", "Offline KV threshold.", ["service", "agent"]
)
FORECAST = Gauge(
    "weir_pod_forecast_online_kv_blocks",
    "KV blocks kept free for online requests: the forecast of what they hold, or what they hold if "
    "that is more, and what they are likely to find again.",
    ["service", "agent"],
)
_SCORES = (COVERAGE, WASTE)
_GAUGES = (ONLINE_KV, ONLINE_REUSE, OFFLINE_KV, TOTAL_KV, THRESHOLD, FORECAST, *_SCORES)
AGENTS = Gauge("weir_agents", "Agents that have synced lately, by state.", ["state"])
LEVELS = Levels(AGENTS, *_GAUGES)
SYNCS = Counter("weir_syncs_total", "Syncs answered, by whether the database was asked.", ["path"])
SYNCS_FROM_MEMORY = SYNCS.labels(path="memory")
SYNCS_FROM_DATABASE = SYNCS.labels(path="database")
SYNC_SECONDS = Histogram(
    "weir_sync_seconds",
    "Duration of a sync.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)


_STATES = ("starting", "serving", "draining", "engine_down", "disk_full")
_AT_ONCE = 100  # pods; between two of such parts, syncs are answered


class PodGauges:
    """Sets each pod's gauges, and removes those of pods that are gone."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._local: set[tuple[str, str]] = set()

    async def update(self, agents: Sequence[AgentEntry]) -> None:
        """Takes over the agents that live now."""
        counts = Counts(entry.state for entry in agents)
        for state in (*_STATES, *(counts.keys() - set(_STATES))):
            AGENTS.labels(state).set(counts[state])
        for start in range(0, len(agents), _AT_ONCE):
            for entry in agents[start : start + _AT_ONCE]:
                self._known.add((entry.service, entry.agent_id))
                self._set(entry)
            await asyncio.sleep(0)
        local = {(item.service, item.agent_id) for item in agents if item.local}
        for service, agent_id in self._local - local:  # whom it syncs with now shows its scores
            self._remove(service, agent_id, _SCORES)
        self._local = local
        for service, agent_id in self._known - {(item.service, item.agent_id) for item in agents}:
            self._known.remove((service, agent_id))
            self._remove(service, agent_id)
        LEVELS.told()

    @staticmethod
    def _set(entry: AgentEntry) -> None:
        told, policy = entry.telemetry, entry.policy
        labels = (entry.service, entry.agent_id)
        if told is not None:
            ONLINE_KV.labels(*labels).set(told.online_kv_blocks)
            ONLINE_REUSE.labels(*labels).set(told.online_reuse_blocks)
            OFFLINE_KV.labels(*labels).set(told.offline_kv_blocks)
            TOTAL_KV.labels(*labels).set(told.total_blocks)
        if policy is not None:
            THRESHOLD.labels(*labels).set(policy.offline_kv_blocks)
            FORECAST.labels(*labels).set(policy.forecast_blocks)

    @staticmethod
    def _remove(service: str, agent_id: str, gauges: Sequence[Gauge] = _GAUGES) -> None:
        for gauge in gauges:
            gauge.remove_by_labels({"service": service, "agent": agent_id})
