"""Alerts: each says what it costs the user, and where the documentation tells what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

OBJECTIVE = 0.99
"""Share of time in which a service keeps each latency objective; the rest is its error budget."""
RUNBOOKS = "docs/runbooks.md"
ENGINE_DOWN = "WeirEngineDown"
CONTROL_PLANE_GONE = "WeirControlPlaneGone"
WITHOUT_LEADER = "WeirOperatorWithoutLeader"
HEADER = "# Generated from observability/ by `make docs`; changes here are overwritten.\n"


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One alert. ``hold`` in Prometheus' form: how long the expression must be true."""

    name: str
    expr: str
    hold: str
    severity: str
    summary: str
    description: str

    def manifest(self) -> dict[str, Any]:
        """Prometheus' form of it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.hold,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook": f"{RUNBOOKS}#{self.name.lower()}",
            },
        }


def _burn(factor: float, *windows: str) -> str:
    """The error budget burns ``factor`` times too fast in every one of the windows.

    Of all time: while nobody asks anything no objective is missed, and none is measured. The
    threshold is there always.
    """
    limit = f"{factor * (1 - OBJECTIVE):.3f}"
    each = "sum by (service, metric, statistic)"
    return "\nand\n".join(
        f"{each} (count_over_time(weir_slo_attained[{window}])"
        f" - sum_over_time(weir_slo_attained[{window}]))\n"
        f"/ {each} (count_over_time(weir_slo_threshold_seconds[{window}])) > {limit}"
        for window in windows
    )


def _told(name: str, matchers: str = "") -> str:
    """That the alert fired within the last day: what is out of sight for longer is not over."""
    found = f'alertname="{name}",alertstate="firing"'
    return f"max_over_time(ALERTS{{{','.join(filter(None, (found, matchers)))}}}[1d])"


def _gone(metric: str, name: str) -> str:
    """Nobody says this any more, though somebody did within a day before the alert ``name``."""
    seen = f"count(max_over_time({metric}[1d]))"
    return f"({seen} or max({_told(name)})) unless count({metric})"


def engine_down(services: str = "") -> str:
    """Agents whose engine does not compute; ``services``: matchers of the label `service`.

    While an engine is started again nobody answers the scrape either. `up` alone would count what
    is no agent of Weir, and pods that load their model for the first time. Pods that are being
    deleted finish their online requests with their port closed: kube-state-metrics knows them.
    """
    agents = "max by (service, agent)"
    return (
        f"{agents} (weir_engine_up{{{services}}}) == 0\n"
        f"or {agents} (up{{{services}}}) == 0\n"
        f"and ({agents} (max_over_time(weir_engine_up{{{services}}}[1d])) == 1\n"
        f"or {agents} ({_told(ENGINE_DOWN, services)}) == 1)\n"
        "unless on (agent) label_join("
        'kube_pod_deletion_timestamp, "agent", ".", "namespace", "pod")'
    )


ALERTS = (
    Alert(
        name="WeirSLOBurnsFast",
        expr=_burn(14.4, "1h", "5m"),
        hold="2m",
        severity="critical",
        summary="{{ $labels.service }}: {{ $labels.metric }} {{ $labels.statistic }} misses its "
        "objective",
        description="At this rate a month's error budget (1%) is gone in two days. Suspend batch "
        "work on the service, or add replicas.",
    ),
    Alert(
        name="WeirSLOBurnsSlowly",
        expr=_burn(6, "6h", "30m"),
        hold="15m",
        severity="warning",
        summary="{{ $labels.service }}: {{ $labels.metric }} {{ $labels.statistic }} often misses "
        "its objective",
        description="At this rate a month's error budget (1%) is gone in five days.",
    ),
    Alert(
        name="WeirPolicyLeaseStale",
        expr='max by (service, agent) (weir_policy_source{source="control_plane"}) == 0',
        hold="5m",
        severity="warning",
        summary="{{ $labels.agent }} has no policy of the control plane",
        description="Online traffic is not affected. Batch work on this pod goes on by its own "
        "forecast for a while, then stops. Can the pod reach the control plane?",
    ),
    Alert(
        name="WeirForecastCoverageLow",
        expr="max by (service, agent) (weir_forecast_coverage_ratio) < 0.9",
        hold="30m",
        severity="warning",
        summary="Online KV demand of {{ $labels.agent }} is often above its forecast",
        description="The best method covered {{ $value | humanizePercentage }} of the last hour. "
        "Raise forecast_sigmas, or lower max_offline_kv_fraction.",
    ),
    Alert(
        name="WeirBatchStuck",
        expr="max by (stage) (weir_batches_stuck) > 0",
        hold="5m",
        severity="warning",
        summary="{{ $value }} batches get nowhere ({{ $labels.stage }})",
        description="Running: for a quarter of an hour no line was committed, although a pod could "
        "take them, or its input is missing. Other stages: it failed three times, or stood still "
        "for a quarter of an hour. `weir queue` names the batches, with the error; for intake, "
        "BatchJobs whose input cannot be read, the control plane's log has them "
        "(`batchjob_waits`).",
    ),
    Alert(
        name="WeirBatchesWait",
        expr="max by (reason) (weir_batches_waiting) > 0",
        hold="30m",
        severity="warning",
        summary="{{ $value }} batches can run nowhere: {{ $labels.reason }}",
        description="InputMissing: the file store says it has not their input. "
        "NoMatchingModel: no pod that their tenants may use serves the model. "
        "RevisionGone: only another revision of it. NoServingPod: pods are starting, draining, or "
        "without engine or disk. PodsPaused: engines died there without a suspect. "
        "NoOfflineSlots: online requests need every pod's KV blocks.",
    ),
    Alert(
        name="WeirBatchAtRisk",
        expr="-min by (batch) (weir_batch_margin_seconds) > 0",
        hold="15m",
        severity="warning",
        summary="Batch {{ $labels.batch }} is expected to miss its deadline",
        description="It is expected to end {{ $value | humanizeDuration }} late. Raise its "
        "priority, or add replicas.",
    ),
    Alert(
        name=ENGINE_DOWN,
        expr=engine_down(),
        hold="5m",
        severity="critical",
        summary="The engine of {{ $labels.agent }} does not compute",
        description="It is restarted with a growing pause; the agent's log has the reason.",
    ),
    Alert(
        name="WeirEngineDiesOften",
        # Back within seconds it is never down for long, or between two scrapes.
        expr="max by (service, agent) (increase(weir_engine_restarts_total[30m])) > 3",
        hold="1m",
        severity="critical",
        summary="The engine of {{ $labels.agent }} dies again and again",
        description='{{ $value | printf "%.0f" }} deaths in half an hour. Each breaks off the '
        "online requests that it had begun. The agent's log has the reason.",
    ),
    Alert(
        name=CONTROL_PLANE_GONE,
        # Replicas without a database are scraped as before, and answer nobody else.
        expr="max(weir_controlplane_database_up) == 0\n"
        f"or ({_gone('weir_controlplane_requests_in_flight', CONTROL_PLANE_GONE)})",
        hold="2m",
        severity="critical",
        summary="No replica of the control plane answers, or none reaches the database",
        description="Files and batches cannot be reached, and batch work ends when its leases do. "
        "Online requests are answered as before.",
    ),
    Alert(
        name=WITHOUT_LEADER,
        # Replicas that are all gone say nothing.
        expr="max(weir_operator_leader) == 0\n"
        f"or ({_gone('weir_operator_leader', WITHOUT_LEADER)})",
        hold="2m",
        severity="warning",
        summary="No replica of the operator leads",
        description="Running services and batches go on; changes to LLMServices and BatchJobs "
        "are not acted on.",
    ),
    Alert(
        name="WeirStatusRefused",
        # A refused one is tried again every minute at least.
        expr="sum(increase(weir_operator_status_refused_total[5m])) > 0",
        hold="5m",
        severity="warning",
        summary="The API server refuses the status of LLMServices or BatchJobs",
        description="Most likely the CRDs are older than the operator, or it has lost a right. "
        "Services and batches are kept as specified, but conditions and progress stand still.",
    ),
)


def rules() -> str:
    """The groups of a rule file, which is also the spec of a PrometheusRule."""
    group = {"name": "weir", "rules": [alert.manifest() for alert in ALERTS]}
    text = yaml.safe_dump({"groups": [group]}, sort_keys=False, width=100, allow_unicode=True)
    return HEADER + text
