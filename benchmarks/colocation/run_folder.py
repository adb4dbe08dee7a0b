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
        "measurement": dataclasses.asdict(measurement),
        **more,
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1))
    part.replace(path)


def other_window(bench: Bench, runs: Iterable[Run]) -> str | None:
    """A finished run whose window is not this bench's, with both; None when there is none."""
    wanted = dataclasses.asdict(bench.window)
    for run in runs:
        path = bench.folder / f"{run.key}.json"
        window = json.loads(path.read_text())["window"] if path.exists() else wanted
        if any(not math.isclose(window[name], wanted[name]) for name in wanted):
            return f"{run.key} has {_seconds(window)}, this command {_seconds(wanted)}"
    return None


def _seconds(window: dict[str, float]) -> str:
    return f"{window['ramp_s']:.1f} + {window['measure_s']:.1f} + {window['tail_s']:.1f} s"


def measurement_from(given: dict[str, Any]) -> Measurement:
    """The inverse of ``dataclasses.asdict``."""
    online = given["online"]
    latency = OnlineLatency(
        requests=online["requests"],
        failed=online["failed"],
        **{name: LatencyStats(**online[name]) for name in ("ttft", "tbt", "tpot")},
    )
    return Measurement(**{**given, "online": latency, "errors": tuple(given["errors"])})


def calibration_file(bench: Bench) -> Path:
    """Where the step costs are kept."""
    return bench.folder / "calibration.json"


def load_calibration(bench: Bench) -> StepCost:
    """The step costs of this run folder.

    Raises:
        FileNotFoundError: nothing ran in it yet.
    """
    return StepCost(**json.loads(calibration_file(bench).read_text()))
