"""`python -m benchmarks.colocation`: the comparison on real vLLM over HTTP, as one command."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import shlex
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from benchmarks import bounds
from benchmarks.awake import awake
from benchmarks.colocation.arms import (
    ONLINE_ONLY,
    WEIR_END_TO_END,
    Arm,
    Run,
    all_arms,
    pressure_arms,
)
from benchmarks.colocation.bench import AgentZygote, Bench
from benchmarks.colocation.cells import Cell, all_cells
from benchmarks.colocation.gpu import GPU
from benchmarks.colocation.order import estimate_s, interleaved, read_baseline
from benchmarks.colocation.pace import pace_for
from benchmarks.colocation.report import report
from benchmarks.colocation.run_folder import (
    calibration_file,
    load_calibration,
    other_window,
    save_origin,
)
from benchmarks.colocation.runner import calibrate_machine, execute_all
from benchmarks.colocation.servers import Servers
from benchmarks.colocation.setup import CPU, Host
from weir_agent.sample_model import write_sample_model
from weir_cli.loadlab.measure import Window
from weir_cli.loadlab.processes import ServerError, available_cores, end_in_order_on_sigterm

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "colocation"
HOSTS = {host.name: host for host in (CPU, GPU)}
PRESSURE_CELLS = ("p99-tbt/50%", "mean-tbt/50%", "all/50%")
BUSY_LOAD = 0.7
# On a slow machine P99 TBT +50% is a quarter of a second: 128 tokens, each of them in time, take
# half a minute.
TAIL_S = 40.0
QUICK_CELLS = ("p99-tbt/50%", "mean-tbt/50%")
COMPACT_ARMS = (
    "online-only",
    "offline-*",
    "stock-*",
    "static-48",
    "static-64",
    "static-128",
    "fixed-64",
    "fixed-128",
    "aimd",
    "weir",
)
QUICK_ARMS = ("online-only", "offline-prefix", "stock-priority", "static-96", "aimd", "weir")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.colocation",
        description="Compares ways to run batch work beside online traffic on one vLLM engine.",
    )
    parser.add_argument("--quick", action="store_true", help="few cells and arms, short windows")
    parser.add_argument(
        "--compact",
        action="store_true",
        help="every cell for Weir, fewer static arms and gateway cells, shorter windows: 50 min",
    )
    parser.add_argument(
        "--host", choices=HOSTS, default=CPU.name, help="what the engine computes on"
    )
    parser.add_argument("--workloads", default="trace,pressure", help="of: trace, pressure")
    parser.add_argument("--cells", default="*", help="patterns, e.g. 'p99-tbt/*,all/50%%'")
    parser.add_argument("--arms", default="*", help="patterns, e.g. 'online-only,static-*,weir'")
    parser.add_argument("--repeats", type=bounds.count, default=1, help="runs of each arm")
    parser.add_argument(
        "--baseline-repeats", type=bounds.count, default=10, help="runs of online-only"
    )
    parser.add_argument(
        "--ramp", type=bounds.seconds, default=15.0, help="seconds before the window"
    )
    parser.add_argument(
        "--measure", type=bounds.seconds, default=60.0, help="seconds of the window"
    )
    parser.add_argument(
        "--pace",
        type=_pace,
        help="stretch of the online arrivals, above 1 of the windows too; default: where online "
        "traffic takes about as much of this machine as of any",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, help="a model folder; default: made locally")
    parser.add_argument("--folder", type=Path, help="run folder; default: .cache/colocation/TIME")
    parser.add_argument("--resume", action="store_true", help="go on in the newest run folder")
    parser.add_argument("--report-only", action="store_true", help="judge the runs that exist")
    parser.add_argument("--keep-awake", action="store_true", help="no core halts while idle")
    given = parser.parse_args(arguments)
    if given.quick:
        given.ramp, given.measure = min(given.ramp, 8.0), min(given.measure, 20.0)
        given.baseline_repeats, given.workloads = 1, "trace"
        given.cells = ",".join(QUICK_CELLS) if given.cells == "*" else given.cells
        given.arms = ",".join(QUICK_ARMS) if given.arms == "*" else given.arms
    if given.compact:
        given.ramp, given.measure = min(given.ramp, 6.0), min(given.measure, 25.0)
        given.arms = ",".join(COMPACT_ARMS) if given.arms == "*" else given.arms
    for workload in given.workloads.split(","):
        if workload not in CPU.workloads:
            known = ", ".join(CPU.workloads)
            parser.error(f"--workloads: {workload!r} is unknown: give {known}")
    if given.repeats < 1 or given.baseline_repeats < 1:
        parser.error("--repeats and --baseline-repeats must be 1 or more")
    return given


def _pace(text: str) -> float:
    pace = float(text)
    if not 0 < pace < math.inf:
        raise argparse.ArgumentTypeError("must be above 0")
    return pace


def choose(given: argparse.Namespace) -> list[Run]:
    """The runs that the command line asks for; the base and the ceiling are always among them.

    Raises:
        SystemExit: a pattern matches nothing.
    """
    runs: list[Run] = []
    for workload in given.workloads.split(","):
        static = HOSTS[given.host].static_tokens
        arms = all_arms(static) if workload == "trace" else pressure_arms()
        cells = _matching_cells(given.cells, workload)
        for arm in _matching_arms(given.arms, arms):
            repeats = given.baseline_repeats if arm.name == ONLINE_ONLY.name else given.repeats
            for repeat in range(repeats):
                wanted: Sequence[Cell | None] = cells if arm.per_cell else [None]
                if given.compact and arm.control == "aimd":
                    wanted = [cell for cell in cells if _compared_with_gateway(cell)]
                runs.extend(
                    Run(workload=workload, arm=arm, cell=cell, repeat=repeat) for cell in wanted
                )
    return runs


def _compared_with_gateway(cell: Cell) -> bool:
    return cell.slo != "p99-tbt" and cell.tolerance_percent != 10


def _matching_cells(patterns: str, workload: str) -> list[Cell]:
    cells = [
        cell
        for cell in all_cells()
        if any(fnmatch(cell.name, pattern) for pattern in patterns.split(","))
        and (workload == "trace" or cell.name in PRESSURE_CELLS)
    ]
    if not cells and workload == "trace":
        names = ", ".join(cell.name for cell in all_cells())
        raise SystemExit(f"--cells {patterns}: matches none of {names}")
    return cells


def _matching_arms(patterns: str, arms: Sequence[Arm]) -> list[Arm]:
    wanted = [*patterns.split(","), "online-only", "offline-prefix"]
    chosen = [
        arm
        for arm in arms
        if any(fnmatch(arm.name, pattern) for pattern in wanted)
        and (arm != WEIR_END_TO_END or arm.name in wanted)
    ]
    unknown = [p for p in patterns.split(",") if not any(fnmatch(arm.name, p) for arm in arms)]
    if unknown and len(chosen) <= 2:
        raise SystemExit(f"--arms {patterns}: no arm is named {', '.join(unknown)}")
    return chosen


def _folder(given: argparse.Namespace) -> Path:
    if given.folder is not None:
        return Path(given.folder)
    existing = sorted(path for path in CACHE.glob("*") if path.is_dir())
    if (given.resume or given.report_only) and existing:
        return existing[-1]
    return CACHE / time.strftime("%Y%m%d-%H%M%S")


def _made(folder: Path) -> Path:
    """The folder, which is there now.

    Raises:
        SystemExit: it cannot be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"--folder {folder}: {error.strerror}: name another") from error
    return folder


def _require_runs(folder: Path, runs: Sequence[Run]) -> None:
    """Keeps a report of nothing from taking the place of the last one.

    Raises:
        SystemExit: none of the runs is in the folder.
    """
    if not any((folder / f"{run.key}.json").exists() for run in runs):
        raise SystemExit(f"--report-only: none of the runs is in {folder}: name their --folder")


def _sample_model(host: Host) -> Path:
    """The host's model, made where it is not there yet."""
    model = CACHE.parent / ("benchmark-model" if host is CPU else f"benchmark-model-{host.name}")
    last = "config.json" if host.dummy_weights else "model.safetensors"
    if not (model / last).exists():
        write_sample_model(model, host.shape, weights=not host.dummy_weights)
    return model


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing, then judges and prints everything."""
    given = parse(arguments)
    end_in_order_on_sigterm()
    runs = choose(given)
    folder = _folder(given)
    if given.report_only:
        _require_runs(folder, runs)
    _made(folder)
    host = HOSTS[given.host]
    model = given.model or _sample_model(host)
    cores = available_cores()
    bench = Bench(
        model=model,
        folder=folder,
        cores=cores,
        window=Window(ramp_s=given.ramp, measure_s=given.measure, tail_s=TAIL_S),
        seed=given.seed,
        agents=AgentZygote(host),
        host=host,
        say=lambda line: print(f"{time.strftime('%H:%M:%S')} {line}", flush=True),
    )
    bench.say(f"{len(runs)} runs; folder {folder}")
    if not cores.apart:
        bench.say("one core only: engine and clients share it, the figures mean nothing")
    if os.getloadavg()[0] > BUSY_LOAD:
        bench.say(f"load average {os.getloadavg()[0]:.1f}: other work disturbs the figures")
    if given.report_only:
        bench = _paced(bench, given.pace)
    else:
        with awake(cores.both if given.keep_awake else ()):
            bench = asyncio.run(_execute(bench, runs, given.pace))
    command = shlex.join(["python", "-m", "benchmarks.colocation", *(arguments or sys.argv[1:])])
    print(report(bench, runs, command=command, full=not given.quick))
    return 0


def _paced(bench: Bench, wanted: float | None) -> Bench:
    if wanted is None:
        calibrated = calibration_file(bench).exists()
        online = bench.host.workloads["trace"].online
        wanted = pace_for(load_calibration(bench), online) if calibrated else 1.0
    return bench.at(wanted)


async def _execute(bench: Bench, runs: Sequence[Run], pace: float | None) -> Bench:
    """Online-only twice, then between the others and at the end.

    What ran before an arm is what that is told and judged by; what ran after it shows the drift.

    The bench comes back at its pace.

    Raises:
        SystemExit: the step costs could not be measured, or finished runs have another window.
    """
    servers = Servers()
    save_origin(bench)
    try:
        await calibrate_machine(bench, servers)
    except ServerError as error:
        raise SystemExit(f"the step costs could not be measured: {error}") from error
    bench = _paced(bench, pace)
    if mixed := other_window(bench, runs):
        raise SystemExit(
            f"{bench.folder}: {mixed} (ramp, window, what it waits for after it): "
            "give the same --ramp, --measure and --pace, or another --folder"
        )
    minutes = estimate_s(bench, runs) / 60
    bench.say(f"online requests {bench.pace:.2f} times as far apart; about {minutes:.0f} min")
    base = [run for run in runs if run.arm.name == ONLINE_ONLY.name]
    rest = [run for run in runs if run.arm.name != ONLINE_ONLY.name]
    try:
        for workload in dict.fromkeys(run.workload for run in runs):
            own = [run for run in base if run.workload == workload]
            others = [run for run in rest if run.workload == workload]
            for group in interleaved(own, others):
                await execute_all(
                    bench, servers, group, lambda name: read_baseline(bench, runs, name)
                )
    finally:
        await servers.stop()
        bench.agents.stop()
    return bench


if __name__ == "__main__":
    sys.exit(main())
