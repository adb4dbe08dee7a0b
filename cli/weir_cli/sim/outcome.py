"""What a simulated fleet came to: figures for people and programs, and plots."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from rich.table import Table

from weir_cli.console import out
from weir_cli.errors import CliError, ExitStatus
from weir_engine.config import Metric, Slo
from weir_engine.sim.chrome import chrome_events
from weir_engine.sim.records import SimResult
from weir_engine.sim.report import Latencies

STATISTICS = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True, kw_only=True)
class Held:
    """One objective: what was measured, in seconds; None, and not held, where nothing was."""

    metric: str
    statistic: str
    threshold_s: float
    measured_s: float | None
    held: bool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Figures of a run over all replicas.

    ``latencies_s`` by metric and statistic, None where nothing was measured; requests that have not
    ended count with their wait for the first token so far, and with the tokens that they have.
    ``online_answered`` have ended. Offline rates count prefix hits as served; ``error`` is the
    scheduler's mean error about a step's duration.
    """

    replicas: int
    seconds: float
    online_arrived: int
    online_answered: int
    latencies_s: dict[str, dict[str, float | None]]
    slos: tuple[Held, ...]
    offline_finished: int
    offline_served_tokens_s: float
    offline_computed_tokens_s: float
    online_tokens_s: float
    busy: float
    steps: int
    preemptions: int
    error: float

    @property
    def all_held(self) -> bool:
        """Every objective held, and every online request was answered."""
        return self.online_answered == self.online_arrived and all(slo.held for slo in self.slos)


def outcome(
    results: Sequence[SimResult], slos: Sequence[Slo], *, arrived: int, seconds: float
) -> Outcome:
    """The figures of a run of ``seconds``."""
    steps = [step for result in results for step in result.steps]
    records = [r for result in results for r in result.online if r.tokens_s]
    latencies = Latencies.so_far(results)
    durations = np.array([step.ended_s - step.started_s for step in steps])
    predicted = np.array([step.predicted_s for step in steps])
    values = {
        Metric.TTFT: latencies.ttft_s,
        Metric.TPOT: latencies.tpot_s,
        Metric.TBT: latencies.tbt_s,
    }
    return Outcome(
        replicas=len(results),
        seconds=seconds,
        online_arrived=arrived,
        online_answered=len(records),
        latencies_s={
            metric.value: {
                statistic: latencies.statistic(metric, statistic) if found else None
                for statistic in STATISTICS
            }
            for metric, found in values.items()
        },
        slos=tuple(_held(latencies, slo) if values[slo.metric] else _unknown(slo) for slo in slos),
        offline_finished=sum(result.offline_finished for result in results),
        offline_served_tokens_s=sum(s.offline_served_tokens for s in steps) / seconds,
        offline_computed_tokens_s=sum(s.offline_computed_tokens for s in steps) / seconds,
        online_tokens_s=sum(s.online_tokens for s in steps) / seconds,
        busy=float(durations.sum()) / seconds / len(results),
        steps=len(steps),
        preemptions=sum(result.preemptions for result in results),
        error=float(np.mean(np.abs(predicted / durations - 1))) if steps else 0.0,
    )


def _held(latencies: Latencies, slo: Slo) -> Held:
    measured_s = latencies.statistic(slo.metric, slo.statistic)
    return replace(_unknown(slo), measured_s=measured_s, held=measured_s <= slo.threshold_s)


def _unknown(slo: Slo) -> Held:
    return Held(
        metric=slo.metric.value,
        statistic=slo.statistic,
        threshold_s=slo.threshold_s,
        measured_s=None,
        held=False,
    )


def show(found: Outcome) -> None:
    """Prints the figures as tables."""
    table = Table("online", *STATISTICS, box=None, pad_edge=False)
    for metric, row in found.latencies_s.items():
        cells = ["–" if row[s] is None else f"{row[s] * 1e3:.1f} ms" for s in STATISTICS]  # type: ignore[operator]
        table.add_row(metric.upper(), *cells)
    out.print(table)
    for slo in found.slos:
        name, threshold = f"{slo.metric} {slo.statistic}", f"{slo.threshold_s * 1e3:.1f} ms"
        if slo.measured_s is None:
            out.print(f"{name} of {threshold}: no request has one")
            continue
        word = "held" if slo.held else "MISSED"
        out.print(f"{name} {slo.measured_s * 1e3:.1f} ms of {threshold}: {word}")
    out.print(
        f"online {found.online_answered} of {found.online_arrived} requests answered, "
        f"{found.online_tokens_s:.0f} tokens/s computed"
    )
    out.print(
        f"offline {found.offline_finished} requests, {found.offline_served_tokens_s:.0f} tokens/s "
        f"served, {found.offline_computed_tokens_s:.0f} computed; {found.preemptions} preemptions"
    )
    out.print(
        f"{found.replicas} replica(s), {found.seconds:.0f} s, {found.steps} steps, "
        f"busy {found.busy:.0%}, step prediction {found.error:.1%} off"
    )


def write_json(found: Outcome, path: Path) -> None:
    """Writes the figures.

    Raises:
        CliError: the file cannot be written.
    """
    write_text(path, json.dumps(asdict(found), indent=1, allow_nan=False) + "\n")


def write_chrome(results: Sequence[SimResult], path: Path) -> None:
    """Writes the run as a Chrome trace.

    Raises:
        CliError: the file cannot be written.
    """
    events = list(chrome_events(results))
    write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def check_output(option: str, path: Path | None) -> None:
    """Refuses a file that cannot be written before hours are spent on what it would hold.

    Raises:
        CliError: it is a folder, or it or its folder may not be written.
    """
    if path is None:
        return
    why = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            why = os.strerror(errno.EISDIR)
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            why = os.strerror(errno.EACCES)
    except OSError as error:
        why = error.strerror
    if why is not None:
        raise CliError(
            f"{option} {path}: {why}",
            remedy="name a file that can be written",
            status=ExitStatus.USAGE,
        )


def write_text(path: Path, text: str) -> None:
    """Writes a file whole.

    Raises:
        CliError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(
            f"{path}: {error.strerror}", remedy="name a file that can be written"
        ) from error
