"""The fleet: is everything there, does it keep its objectives, what does it do."""

from __future__ import annotations

from observability.alerts import engine_down
from observability.panels import Board, Panel, Query

RATE = "$__rate_interval"
SERVICE = 'service=~"$service"'

HEALTH = (
    Panel(
        title="Agents that serve",
        description="Agents that synced within 30 s and take batch work.",
        unit="short",
        width=6,
        number=True,
        queries=[Query(expr='max(weir_agents{state="serving"})')],
    ),
    Panel(
        title="Engines down",
        description="Agents whose engine does not compute now; first starts do not count.",
        unit="short",
        width=6,
        number=True,
        queries=[Query(expr=f"count({engine_down(SERVICE)}) or vector(0)")],
    ),
    Panel(
        title="Objectives kept",
        description="Share of latency objectives, over all agents, that hold over the last minute.",
        unit="percentunit",
        width=6,
        number=True,
        queries=[Query(expr=f"avg(weir_slo_attained{{{SERVICE}}})")],
    ),
    Panel(
        title="Batches that run",
        description="Batches with lines to compute.",
        unit="short",
        width=6,
        number=True,
        queries=[Query(expr='max(weir_batches{status="in_progress"})')],
    ),
)
WORK = (
    Panel(
        title="Tokens served",
        description="Tokens a second that online and offline requests got.",
        unit="tok/s",
        queries=[
            Query(
                expr="sum by (service, class) (rate(weir_tokens_total"
                f'{{kind="served",{SERVICE}}}[{RATE}]))',
                legend="{{service}} {{class}}",
            )
        ],
    ),
    Panel(
        title="Objectives kept, by service",
        description="Share of a service's agents and objectives that hold over the last minute.",
        unit="percentunit",
        queries=[
            Query(expr=f"avg by (service) (weir_slo_attained{{{SERVICE}}})", legend="{{service}}")
        ],
    ),
    Panel(
        title="KV level of each pod",
        description="Share of a pod's KV blocks that are in use, online and offline.",
        unit="percentunit",
        queries=[
            Query(
                expr=f"max by (service, agent) ((weir_pod_online_kv_blocks{{{SERVICE}}} + "
                f"weir_pod_offline_kv_blocks{{{SERVICE}}}) / weir_pod_kv_blocks{{{SERVICE}}})",
                legend="{{agent}}",
            )
        ],
    ),
    Panel(
        title="Whose policy holds",
        description="Agents that have a control plane, by the source of their policy: the control "
        "plane, their own forecast after its lease ended, or none (online only).",
        unit="short",
        queries=[
            Query(expr=f"sum by (source) (weir_policy_source{{{SERVICE}}})", legend="{{source}}")
        ],
    ),
)
PLANES = (
    Panel(
        title="Syncs",
        description="Duration of an agent's sync in the control plane.",
        unit="s",
        queries=[
            Query(
                expr=f"histogram_quantile({quantile}, sum by (le) "
                f"(rate(weir_sync_seconds_bucket[{RATE}])))",
                legend=f"p{quantile * 100:.0f}",
            )
            for quantile in (0.5, 0.99)
        ],
    ),
    Panel(
        title="Requests to the control plane",
        description="Requests a second by status.",
        unit="reqps",
        queries=[
            Query(
                expr=f"sum by (status) (rate(weir_controlplane_requests_total[{RATE}]))",
                legend="{{status}}",
            )
        ],
    ),
    Panel(
        title="Engine restarts",
        description="Restarts of engines after a death, in an hour.",
        unit="short",
        queries=[
            Query(
                expr=f"sum by (service) (increase(weir_engine_restarts_total{{{SERVICE}}}[1h]))",
                legend="{{service}}",
            )
        ],
    ),
    Panel(
        title="Operator",
        description="Objects that wait for a reconcile, and replicas that lead (one).",
        unit="short",
        queries=[
            Query(expr="sum(weir_operator_queue_depth)", legend="waiting"),
            Query(expr="sum(weir_operator_leader)", legend="leaders"),
        ],
    ),
)

BOARD = Board(
    uid="weir-fleet",
    title="Weir / Fleet",
    description="Agents, services and the control plane at a glance.",
    variables={"service": "label_values(weir_engine_up, service)"},
    rows={"Health": HEALTH, "Work": WORK, "Planes": PLANES},
)
