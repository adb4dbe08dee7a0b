"""One service: online latency against its objectives, and the room that offline work gets."""

from __future__ import annotations

from observability.fleet import RATE, SERVICE
from observability.panels import Board, Panel, Query


def latency(metric: str, long_name: str) -> Panel:
    """Quantiles of one latency beside what the objectives on it measure and allow."""
    quantiles = [
        Query(
            expr=f"histogram_quantile({quantile}, sum by (service, le) "
            f"(rate(weir_online_{metric}_seconds_bucket{{{SERVICE}}}[{RATE}])))",
            legend=f"{{{{service}}}} p{quantile * 100:.0f}",
        )
        for quantile in (0.5, 0.9, 0.99)
    ]
    objectives = [
        Query(
            expr=f"max by (service, statistic) (weir_slo_{what}_seconds"
            f'{{metric="{metric}",{SERVICE}}})',
            legend=f"{{{{service}}}} {{{{statistic}}}} {says}",
        )
        for what, says in (("measured", "measured, worst pod"), ("threshold", "objective"))
    ]
    return Panel(
        title=f"{metric.upper()} against its objective",
        description=f"{long_name} of streamed online requests, where responses leave.",
        unit="s",
        width=8,
        queries=[*quantiles, *objectives],
    )


LATENCY = (
    latency("ttft", "Time to the first token"),
    latency("tbt", "Time between tokens"),
    latency("tpot", "Time per output token, counted from the first,"),
)
ROOM = (
    Panel(
        title="KV blocks by class against the threshold",
        description="What online and offline requests hold, and what offline work may hold at "
        "most: the weir.",
        unit="short",
        queries=[
            Query(
                expr="sum by (service, class) (weir_kv_blocks"
                f'{{class=~"online|offline",{SERVICE}}})',
                legend="{{service}} {{class}}",
            ),
            Query(
                expr=f"sum by (service) (weir_offline_kv_threshold_blocks{{{SERVICE}}})",
                legend="{{service}} offline threshold",
            ),
            Query(
                expr=f"sum by (service) (weir_kv_total_blocks{{{SERVICE}}})",
                legend="{{service}} all",
            ),
        ],
    ),
    Panel(
        title="Online KV demand: forecast against actual",
        description="What the control plane keeps free for online work, what online requests hold, "
        "and with it the free blocks in which they are likely to find their prefixes.",
        unit="short",
        queries=[
            Query(
                expr=f"max by (agent) (weir_pod_forecast_online_kv_blocks{{{SERVICE}}})",
                legend="{{agent}} forecast",
            ),
            Query(
                expr=f"max by (agent) (weir_pod_online_kv_blocks{{{SERVICE}}})",
                legend="{{agent}} held",
            ),
            Query(
                expr=f"max by (agent) (weir_pod_online_kv_blocks{{{SERVICE}}} + "
                f"weir_pod_online_reuse_blocks{{{SERVICE}}})",
                legend="{{agent}} held and found again",
            ),
        ],
    ),
    Panel(
        title="How good the forecasts are",
        description="Coverage: share of the last hour's spans in which demand stayed within the "
        "forecast. Waste: share of blocks kept free for nothing. Needs ten minutes of history.",
        unit="percentunit",
        queries=[
            Query(
                expr=f"avg by (service, method) (weir_forecast_{what}_ratio{{{SERVICE}}})",
                legend=f"{{{{service}}}} {{{{method}}}} {what}",
            )
            for what in ("coverage", "waste")
        ],
    ),
    Panel(
        title="Step: budget and duration",
        description="How long a step may take by the control plane's policy (0: the engine "
        "decides by its objectives), and how long steps take.",
        unit="s",
        queries=[
            Query(
                expr=f"max by (service) (weir_step_budget_seconds{{{SERVICE}}})",
                legend="{{service}} budget",
            ),
            Query(
                expr=f"max by (service, statistic) (weir_engine_step_seconds{{{SERVICE}}})",
                legend="{{service}} {{statistic}}",
            ),
        ],
    ),
)
OFFLINE = (
    Panel(
        title="Offline tokens",
        description="Tokens a second that batch lines got, and that were computed for them: the "
        "prefix cache makes the first larger, recomputation the second.",
        unit="tok/s",
        queries=[
            Query(
                expr="sum by (service, kind) (rate(weir_tokens_total"
                f'{{class="offline",{SERVICE}}}[{RATE}]))',
                legend="{{service}} {{kind}}",
            )
        ],
    ),
    Panel(
        title="Requests in the engine",
        description="By class and state, and how many offline ones may run.",
        unit="short",
        queries=[
            Query(
                expr=f"sum by (service, class, state) (weir_engine_requests{{{SERVICE}}})",
                legend="{{service}} {{class}} {{state}}",
            ),
            Query(
                expr=f"sum by (service) (weir_offline_seq_slots{{{SERVICE}}})",
                legend="{{service}} offline slots",
            ),
        ],
    ),
    Panel(
        title="Preemptions and divergences",
        description="Offline requests preempted, and steps in which the engine did not do what "
        "was planned, a second.",
        unit="ops",
        queries=[
            Query(
                expr=f"sum by (service) (rate(weir_preemptions_total{{{SERVICE}}}[{RATE}]))",
                legend="{{service}} preemptions",
            ),
            Query(
                expr=f"sum by (service) (rate(weir_plan_divergences_total{{{SERVICE}}}[{RATE}]))",
                legend="{{service}} divergences",
            ),
        ],
    ),
    Panel(
        title="Error of predicted step times",
        description="Mean relative error of the latency model.",
        unit="percentunit",
        queries=[
            Query(expr=f"max by (service) (weir_predictor_mape{{{SERVICE}}})", legend="{{service}}")
        ],
    ),
)

BOARD = Board(
    uid="weir-service",
    title="Weir / Service",
    description="Online latency against its objectives, and the room that offline work gets.",
    variables={"service": "label_values(weir_engine_up, service)"},
    rows={"Online latency": LATENCY, "Room": ROOM, "Offline work": OFFLINE},
)
