"""Prometheus metrics of the fleet: each pod's KV level against its threshold, and the syncs."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from weir_controlplane.agents.registry import AgentEntry

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
OFFLINE_KV = Gauge(
    "weir_pod_offline_kv_blocks", "KV blocks that offline alone holds.", ["service", "agent"]
)
TOTAL_KV = Gauge("weir_pod_kv_blocks", "KV blocks of the pod.", ["service", "agent"])
THRESHOLD = Gauge(
    "weir_pod_offline_kv_threshold_blocks", "Offline KV threshold.", ["service", "agent"]
)
FORECAST = Gauge(
    "weir_pod_forecast_online_kv_blocks", "Online KV demand forecast.", ["service", "agent"]
)
AGENTS = Gauge("weir_agents", "Agents that have synced lately, by state.", ["state"])
SYNCS = Counter("weir_syncs_total", "Syncs answered, by whether the database was asked.", ["path"])
SYNC_SECONDS = Histogram(
    "weir_sync_seconds",
    "Duration of a sync.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)


class PodGauges:
    """Sets each pod's gauges, and removes those of pods that are gone."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def update(self, agents: list[AgentEntry]) -> None:
        """Takes over the agents that live now."""
        states: dict[str, int] = dict.fromkeys(
            ("starting", "serving", "draining", "engine_down", "disk_full"), 0
        )
        for entry in agents:
            states[entry.state] = states.get(entry.state, 0) + 1
            self._set(entry)
        for state, count in states.items():
            AGENTS.labels(state=state).set(count)
        now = {(entry.service, entry.agent_id) for entry in agents}
        for service, agent_id in self._known - now:
            self._remove(service, agent_id)
        self._known = now

    @staticmethod
    def _set(entry: AgentEntry) -> None:
        told, policy = entry.telemetry, entry.policy
        labels = {"service": entry.service, "agent": entry.agent_id}
        if told is not None:
            ONLINE_KV.labels(**labels).set(told.online_kv_blocks)
            OFFLINE_KV.labels(**labels).set(told.offline_kv_blocks)
            TOTAL_KV.labels(**labels).set(told.total_blocks)
        if policy is not None:
            THRESHOLD.labels(**labels).set(policy.offline_kv_blocks)
            FORECAST.labels(**labels).set(policy.forecast_blocks)

    @staticmethod
    def _remove(service: str, agent_id: str) -> None:
        for gauge in (ONLINE_KV, OFFLINE_KV, TOTAL_KV, THRESHOLD, FORECAST, COVERAGE, WASTE):
            gauge.remove_by_labels({"service": service, "agent": agent_id})
