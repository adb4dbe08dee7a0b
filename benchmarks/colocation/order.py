"""In which order runs are made, how long they take, and what an arm is told before its own."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.colocation.arms import ONLINE_ONLY, Run
from benchmarks.colocation.bench import Bench
from benchmarks.colocation.cells import Baseline, baseline_before
from benchmarks.colocation.run_folder import load_run

START_S = {"stock": 18.0, "weir": 6.0}  # an agent is forked


def estimate_s(bench: Bench, runs: Sequence[Run]) -> float:
    """How long the runs that are still to be made will take."""
    waiting = [run for run in runs if load_run(bench, run) is None]
    servers = {
        (run.workload, run.arm.engine, run.cell if run.arm.control == "weir" else None, run.repeat)
        if run.arm.control == "weir"
        else (run.workload, run.arm.engine)
        for run in waiting
    }
    starts_s = sum(START_S["weir" if len(server) == 4 else "stock"] for server in servers)
    lead_s = sum(
        bench.workload(run.workload).lead_s for run in waiting if run.arm.control == "weir"
    )
    each_s = bench.window.ramp_s + bench.window.measure_s + 3.0
    return starts_s + lead_s + len(waiting) * each_s


def interleaved(base: Sequence[Run], others: Sequence[Run]) -> list[Sequence[Run]]:
    """Groups in the order in which they run: two of ``base``, then a share of the others and one.

    Every run is in one group, however few there are of either kind.
    """
    groups = [base[:2]]
    parts = max(1, len(base) - 2)
    share = -(-len(others) // parts)
    for number in range(parts):
        groups += [others[number * share : (number + 1) * share], base[2 + number : 3 + number]]
    return [group for group in groups if group]


def read_baseline(bench: Bench, runs: Sequence[Run], workload: str) -> Baseline:
    """The latency that a workload's online-only arm had last."""
    base = [
        load_run(bench, run)
        for run in runs
        if run.workload == workload and run.arm.name == ONLINE_ONLY.name
    ]
    return baseline_before([measured for measured in base if measured is not None], time.time())
