"""From run files to result file, tables and plot; what is worse is printed too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import mean
from typing import Any

from benchmarks.claims import Claim, render, write_results
from benchmarks.colocation.arms import Run
from benchmarks.colocation.bench import Bench
from benchmarks.colocation.bound import Bound, bound_of, step_s
from benchmarks.colocation.cells import QUANTITIES, Baseline, baseline_of, quantity_s
from benchmarks.colocation.judge import CellResult, Results, Verdict, judge, runs_of
from benchmarks.colocation.plot import plot
from benchmarks.colocation.run_folder import load_calibration, load_origin, load_run
from benchmarks.colocation.setup import CPU
from benchmarks.colocation.statements import WEIR, claims_of, pressure_claims
from weir_cli.loadlab.measure import Measurement


def report(bench: Bench, runs: Sequence[Run], *, command: str, full: bool) -> str:
    """All tables; with ``full`` also the result file and its plot.

    It is `results/colocation.json`, of a GPU `results/other-hosts/colocation-gpu.json`.
    """
    loaded = {run: load_run(bench, run) for run in runs}
    results = {run: result for run, result in loaded.items() if result is not None}
    sections: list[str] = []
    claims: list[Claim] = []
    everything: dict[str, Any] = {
        **load_origin(bench),
        "window": asdict(bench.window),
        "pace": bench.pace,
        "workloads": {},
    }
    judged: list[CellResult] = []
    for workload in dict.fromkeys(run.workload for run in results):
        base = runs_of(results, workload, "online-only")
        bound = _bound(bench, results, workload) if bench.host.pinned else None
        ceiling_per_s = _ceiling_per_s(results, workload)
        cells = [
            judge(results, workload, cell, base, bound)
            for cell in dict.fromkeys(run.cell for run in runs if run.workload == workload)
            if cell is not None
        ]
        judged += cells
        if workload == "trace":
            claims += claims_of(cells, ceiling_per_s=ceiling_per_s)
        else:
            claims += pressure_claims(
                cells, online_hit_rate=mean(run.online_hit_rate for run in base)
            )
        sections += [
            f"\n== {workload} ==",
            bound_text(bound) if bound else "",
            arm_table(results, workload),
            client_text(results, workload),
            cell_table(cells, ceiling_per_s),
            *worse(cells, results, workload, baseline_of(base)),
        ]
        everything["workloads"][workload] = _json(results, workload, cells, bound)
    sections += ["", render(claims)]
    if full:
        name = "colocation" if bench.host is CPU else f"other-hosts/colocation-{bench.host.name}"
        path = write_results(name, claims, command=command, seeds=[bench.seed], more=everything)
        picture = plot(judged, path.with_suffix(".png"))
        sections.append(f"\nwritten: {path}, {picture}")
    missing = sum(result is None for result in loaded.values())
    if missing:
        sections.append(f"{missing} of {len(loaded)} runs are missing: --resume makes them")
    return "\n".join(sections)


def _bound(bench: Bench, results: Results, workload: str) -> Bound | None:
    ceiling = runs_of(results, workload, "offline-prefix")
    online_only = runs_of(results, workload, "online-only")
    if not ceiling or not online_only:
        return None
    packed = [
        measurement
        for run, measurement in results.items()
        if run.workload == workload and run.arm.name.startswith("static-")
    ]
    return bound_of(
        c0_s=load_calibration(bench).c0_s,
        online_only=online_only,
        ceiling=ceiling,
        packed=packed,
    )


def _ceiling_per_s(results: Results, workload: str) -> float:
    """Offline tokens a second alone on the engine in prefix order; 0 where that was not run."""
    alone = runs_of(results, workload, "offline-prefix")
    return mean(run.offline_served_per_s for run in alone) if alone else 0.0


def bound_text(bound: Bound) -> str:
    """How the bound was made."""
    check = (
        ""
        if bound.c0_of_arms_s is None
        else f" (regression over the static arms: {1e3 * bound.c0_of_arms_s:.1f} ms)"
    )
    return (
        f"bound: c0 = {1e3 * bound.c0_s:.2f} ms a step, from calibration{check}; "
        f"u = {bound.online_share:.1%}, online-only's busy share less c0 for each of its steps; "
        f"ceiling {bound.ceiling_per_s:,.0f} tokens/s at {1e3 * bound.ceiling_step_s:.0f} ms a "
        f"step, so {bound.full_per_s:,.0f} without fixed part.\n"
        f"P99 TBT bound S: (1 - c0/S - u) of the latter."
    )


def arm_table(results: Results, workload: str) -> str:
    """Every arm that is not told an SLO: latencies and offline tokens a second."""
    lines = [
        " ".join(
            (
                f"{'arm':<24}{'mean/P99 TTFT ms':>19}{'mean/P99 TBT ms':>19}{'served/s':>9}",
                f"{'computed/s':>11}{'step ms':>8}{'hits':>5}",
            )
        )
    ]
    names = dict.fromkeys(
        run.arm.name for run in results if run.workload == workload and not run.arm.per_cell
    )
    for name in names:
        measured = runs_of(results, workload, name)
        lines.append(_arm_line(name, measured))
    return "\n".join(lines)


def _arm_line(name: str, measured: Sequence[Measurement]) -> str:
    online = bool(measured[0].online.requests)
    ttft, tbt = (
        "/".join(
            f"{1e3 * mean(quantity_s(run, metric, statistic) for run in measured):.1f}"
            for statistic in ("mean", "p99")
        )
        if online
        else "-"
        for metric in ("ttft", "tbt")
    )
    hits = f"{mean(run.online_hit_rate for run in measured):.0%}" if online else "-"
    return (
        f"{name:<24}{ttft:>20}{tbt:>20}"
        f"{mean(run.offline_served_per_s for run in measured):>10,.0f}"
        f"{mean(run.offline_computed_per_s for run in measured):>12,.0f}"
        f"{1e3 * mean(step_s(run) for run in measured):>9.1f}{hits:>6}"
    )


def client_text(results: Results, workload: str) -> str:
    """What the load generator itself took, and what failed."""
    runs = [run for key, run in results.items() if key.workload == workload]
    share = max(run.client_cpu_share for run in runs)
    failed = sum(run.online.failed for run in runs)
    return (
        f"load generator: at most {share:.1%} of its core; "
        f"{failed} online and {sum(run.offline_errors for run in runs)} offline requests failed"
    )


def cell_table(cells: Iterable[CellResult], ceiling_per_s: float) -> str:
    """One line a cell: bounds, best static arm, AIMD, Weir, shares; ``!`` marks a missed SLO."""
    lines = [
        " ".join(
            (
                f"{'cell':<16}{'bounds ms':<34}{'best static that holds':<30}",
                f"{'AIMD':>8}{'Weir':>9}",
                f"{'computed':>9}{'of ceiling':>11}{'of bound':>10}",
            )
        )
    ]
    for result in cells:
        bounds = "/".join(f"{1e3 * value:.1f}" for value in result.thresholds_s.values())
        static = result.best_static()
        best = f"{static.arm} {static.served.mean:,.0f}" if static else "none"
        weir = result.verdicts.get(WEIR)
        ceiling = of_bound = computed = "-"
        if weir is not None:
            computed = f"{weir.computed.mean:,.0f}"
            if ceiling_per_s:
                ceiling = f"{weir.served.mean / ceiling_per_s:.0%}"
            if result.bound_per_s:
                of_bound = f"{weir.served.mean / result.bound_per_s:.0%}"
        lines.append(
            f"{result.cell.name:<16}{bounds:<34}{best:<30}{_served(result.best_gateway()):>9}"
            f"{_served(weir):>9}{computed:>10}{ceiling:>11}{of_bound:>10}"
        )
    return "\n".join(lines)


def _served(verdict: Verdict | None) -> str:
    if verdict is None:
        return "-"
    return f"{verdict.served.mean:,.0f}{'' if verdict.holds else '!'}"


def worse(
    cells: Iterable[CellResult], results: Results, workload: str, baseline: Baseline
) -> list[str]:
    """What Weir does not do better."""
    lines = ["where Weir is worse:"]
    for result in cells:
        weir = result.verdicts.get(WEIR)
        if weir is None:
            continue
        if not weir.holds:
            lines.append(f"  {result.cell.name}: misses the SLO by {weir.excess.mean - 1:.0%}")
        elif weir.of_both_sides.mean > 1:
            over = f"{weir.of_both_sides.mean - 1:.1%} over it"
            lines.append(
                f"  {result.cell.name}: holds what was told, and is {over} by the online-only runs "
                "on both sides"
            )
        better = [
            f"{verdict.arm} {verdict.served.mean:,.0f}"
            for verdict in result.verdicts.values()
            if verdict.holds and verdict.served.mean > weir.served.mean
        ]
        if better:
            lines.append(
                f"  {result.cell.name}: {weir.served.mean:,.0f} tokens/s against "
                + ", ".join(better)
            )
        lines += _unbounded(results, workload, result, baseline)
    return lines if len(lines) > 1 else [lines[0] + " nowhere in these cells"]


def _unbounded(
    results: Results, workload: str, result: CellResult, baseline: Baseline
) -> list[str]:
    """Latencies that the cell leaves free and that are more than half above online-only."""
    measured = runs_of(results, workload, WEIR, result.cell)
    risen = []
    for metric, statistic in QUANTITIES:
        if f"{statistic} {metric}" in result.thresholds_s:
            continue
        factor = (
            mean(quantity_s(run, metric, statistic) for run in measured)
            / baseline.value_s[metric, statistic]
        )
        if factor > 1.5:
            risen.append(f"{statistic} {metric.upper()} {factor:.1f}x")
    return (
        [f"  {result.cell.name}: not bounded here and above online-only: {', '.join(risen)}"]
        if risen
        else []
    )


def _json(
    results: Results, workload: str, cells: Sequence[CellResult], bound: Bound | None
) -> dict[str, Any]:
    return {
        "bound": asdict(bound) if bound else None,
        "runs": [
            {"run": run.key, **asdict(measurement)}
            for run, measurement in results.items()
            if run.workload == workload
        ],
        "cells": [
            {
                "cell": result.cell.name,
                "thresholds_s": dict(result.thresholds_s),
                "bound_per_s": result.bound_per_s,
                "best_static": _name(result.best_static()),
                "best_gateway": _name(result.best_gateway()),
                "arms": {
                    name: {**asdict(verdict), "holds": verdict.holds}
                    for name, verdict in result.verdicts.items()
                },
            }
            for result in cells
        ],
    }


def _name(verdict: Verdict | None) -> str | None:
    return verdict.arm if verdict else None
