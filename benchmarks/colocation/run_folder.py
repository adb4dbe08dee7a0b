"""A run folder: every finished run is a file in it, and the step costs of its machine another."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.colocation.arms import Run
from benchmarks.colocation.bench import Bench
from benchmarks.colocation.calibrate import StepCost
from benchmarks.machine import commit, describe_machine
from weir_cli.loadlab.measure import Measurement
from weir_cli.loadlab.records import LatencyStats, OnlineLatency


def load_run(bench: Bench, run: Run) -> Measurement | None:
    """A finished run's measurement; None when there is none."""
    path = bench.folder / f"{run.key}.json"
    return measurement_from(json.loads(path.read_text())["measurement"]) if path.exists() else None


def save_run(bench: Bench, run: Run, measurement: Measurement, more: dict[str, Any]) -> None:
    """Keeps a finished run; the file appears whole or not at all."""
    path = bench.folder / f"{run.key}.json"
    content = {
        "run": run.key,
        "window": dataclasses.asdict(bench.window),
        "pace": bench.pace,
        "measurement": dataclasses.asdict(measurement),
        **more,
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1))
    part.replace(path)


def other_window(bench: Bench, runs: Iterable[Run]) -> str | None:
    """A finished run whose window or pace is not this bench's, with both; None if there is none."""
    wanted = dataclasses.asdict(bench.window) | {"pace": bench.pace}
    for run in runs:
        path = bench.folder / f"{run.key}.json"
        if not path.exists():
            continue
        content = json.loads(path.read_text())
        had = content["window"] | {"pace": content.get("pace", bench.pace)}
        if any(not math.isclose(had[name], wanted[name]) for name in wanted):
            return f"{run.key} has {_window(had)}, this command {_window(wanted)}"
    return None


def _window(had: dict[str, float]) -> str:
    seconds = f"{had['ramp_s']:.1f} + {had['measure_s']:.1f} + {had['tail_s']:.1f} s"
    return f"{seconds} at pace {had['pace']:.2f}"


def measurement_from(given: dict[str, Any]) -> Measurement:
    """The inverse of ``dataclasses.asdict``."""
    online = given["online"]
    latency = OnlineLatency(
        requests=online["requests"],
        failed=online["failed"],
        **{name: LatencyStats(**online[name]) for name in ("ttft", "tbt", "tpot")},
    )
    return Measurement(**{**given, "online": latency, "errors": tuple(given["errors"])})


def save_origin(bench: Bench) -> None:
    """Keeps on what machine and from what commit the folder's first run was made."""
    path = _origin_file(bench)
    if not path.exists():
        path.write_text(json.dumps({"machine": describe_machine(), "commit": commit()}, indent=1))


def load_origin(bench: Bench) -> dict[str, Any]:
    """``machine`` and ``commit`` of the runs; empty for a folder that has none."""
    path = _origin_file(bench)
    origin: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return origin


def _origin_file(bench: Bench) -> Path:
    return bench.folder / "origin.json"


def calibration_file(bench: Bench) -> Path:
    """Where the step costs are kept."""
    return bench.folder / "calibration.json"


def load_calibration(bench: Bench) -> StepCost:
    """The step costs of this run folder.

    Raises:
        FileNotFoundError: nothing ran in it yet.
    """
    return StepCost(**json.loads(calibration_file(bench).read_text()))
