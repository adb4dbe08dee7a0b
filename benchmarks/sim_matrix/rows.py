"""A row of the matrix: an objective, and what Weir and the other arms came to under it."""

from __future__ import annotations

from dataclasses import dataclass

from weir_engine.config import Metric, Slo
from weir_engine.sim.report import Summary, attained, bound

OBJECTIVES: dict[str, tuple[tuple[Metric, str], ...]] = {
    "tbt-mean": ((Metric.TBT, "mean"),),
    "tbt-p99": ((Metric.TBT, "p99"),),
    "ttft-mean": ((Metric.TTFT, "mean"),),
    "ttft-p99": ((Metric.TTFT, "p99"),),
    "all": (
        (Metric.TBT, "mean"),
        (Metric.TBT, "p99"),
        (Metric.TTFT, "mean"),
        (Metric.TTFT, "p99"),
    ),
}


def slos_of(name: str, alone: Summary, tolerance: float) -> tuple[Slo, ...]:
    """The objectives of a row: online alone plus the tolerance."""
    return tuple(
        Slo(
            metric=metric,
            statistic=statistic,
            threshold_s=alone.latencies.statistic(metric, statistic) * (1 + tolerance),
            reference_s=alone.latencies.statistic(metric, statistic),
        )
        for metric, statistic in OBJECTIVES[name]
    )


@dataclass(frozen=True, kw_only=True)
class Base:
    """What a trace does without co-location, and under stock scheduling of its own prefix order."""

    alone: Summary
    ceiling: Summary
    static: dict[str, Summary]
    fixed_s: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a cell came to. ``ratio`` is measured over SLO, the worst of several."""

    slo: str
    tolerance: float
    ratio: float
    served_tokens_s: float
    ceiling_share: float
    bound_share: float
    step_ms: float
    busy: float
    error: float
    preemptions: int
    static_tokens_s: float | None
    aimd_tokens_s: float
    aimd_ratio: float
    online_hits: float
    worst: str


def row_of(
    key: tuple[str, float], slos: tuple[Slo, ...], done: Summary, aimd: Summary, base: Base
) -> Row:
    """A run against its objectives and the bound."""
    name, tolerance = key
    static = [
        summary.served_tokens_s
        for summary in base.static.values()
        if attained(summary.latencies, slos) <= 1.0
    ]
    worst = max(slos, key=lambda slo: attained(done.latencies, (slo,)))
    tails = [s.threshold_s for s in slos if s.metric is Metric.TBT and not s.is_mean]
    share = done.served_tokens_s / base.ceiling.served_tokens_s
    allowed = bound(
        fixed_s=base.fixed_s,
        step_limit_s=min(tails, default=None),
        online_share=base.alone.online_share,
    ) / bound(fixed_s=base.fixed_s, step_limit_s=base.ceiling.step_s, online_share=0.0)
    return Row(
        slo=name,
        tolerance=tolerance,
        ratio=attained(done.latencies, slos),
        served_tokens_s=done.served_tokens_s,
        ceiling_share=share,
        bound_share=share / min(allowed, 1.0),
        step_ms=done.step_s * 1e3,
        busy=done.busy,
        error=done.error,
        preemptions=done.preemptions,
        static_tokens_s=max(static, default=None),
        aimd_tokens_s=aimd.served_tokens_s,
        aimd_ratio=attained(aimd.latencies, slos),
        online_hits=done.online_hit_rate,
        worst=f"{worst.metric.value}-{worst.statistic}",
    )


def print_base(trace: str, base: Base) -> None:
    """Online alone, the ceiling and the static arms; then the header of the rows."""
    print(
        f"\n{trace}: {len(base.alone.latencies.ttft_s)} requests, busy {base.alone.busy:.2f}, "
        f"u {base.alone.online_share:.2f}; ceiling {base.ceiling.served_tokens_s:.0f} served, "
        f"{base.ceiling.computed_tokens_s:.0f} computed tokens/s, "
        f"step {base.ceiling.step_s * 1e3:.0f} ms, busy {base.ceiling.busy:.2f}"
    )
    for name, summary in (("online alone", base.alone), *base.static.items()):
        values = " ".join(
            f"{metric.value}-{statistic} {summary.latencies.statistic(metric, statistic) * 1e3:.1f}"
            for metric, statistic in OBJECTIVES["all"]
        )
        print(
            f"{name:12} ms: {values}; {summary.served_tokens_s:.0f} tokens/s, "
            f"online hits {summary.online_hit_rate:.1%}"
        )
    print(
        "slo        tol  measured/SLO  tokens/s  of ceiling  of bound  step ms  busy  error  lost"
        "  best static       aimd (measured/SLO)  hits  worst"
    )


def print_row(made: Row) -> None:
    """One line under that header."""
    static = "-" if made.static_tokens_s is None else f"{made.static_tokens_s:.0f}"
    print(
        f"{made.slo:9} {made.tolerance:4.0%} {made.ratio:13.3f} {made.served_tokens_s:9.0f} "
        f"{made.ceiling_share:11.1%} {made.bound_share:9.1%} {made.step_ms:8.1f} "
        f"{made.busy:5.2f} {made.error:6.1%} {made.preemptions:5} {static:>12} "
        f"{made.aimd_tokens_s:10.0f} ({made.aimd_ratio:.2f}) {made.online_hits:8.1%}  {made.worst}",
        flush=True,
    )
