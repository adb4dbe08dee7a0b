"""A simulated run as pictures: what was served over time, and how late it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weir_cli.errors import CliError, ExitStatus
from weir_engine.config import Metric, Slo
from weir_engine.sim.records import SimResult
from weir_engine.sim.report import Latencies

SIZE_INCHES = (8, 3.2)
BINS = 120


def check_plots(folder: Path | None) -> None:
    """Refuses plots that cannot be made before hours are spent on what they would show.

    Raises:
        CliError: matplotlib is missing, or the folder cannot be made.
    """
    if folder is None:
        return
    _figure()
    with _named(folder, ExitStatus.USAGE):
        folder.mkdir(parents=True, exist_ok=True)


def write_plots(results: Sequence[SimResult], slos: Sequence[Slo], folder: Path) -> list[Path]:
    """Tokens a second by class over time, and online latencies as distributions.

    Raises:
        CliError: matplotlib is missing, or the folder cannot be written.
    """
    figures = {
        "tokens": _tokens(_figure(), results),
        "latencies": _latencies(_figure(), results, slos),
    }
    written = []
    with _named(folder, ExitStatus.FAILED):
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            written.append(folder / f"{name}.png")
            figure.savefig(written[-1], dpi=120)
    return written


@contextmanager
def _named(folder: Path, status: ExitStatus) -> Iterator[None]:
    """Turns what keeps a folder from being written into a sentence about the option.

    Raises:
        CliError: in place of an OSError inside.
    """
    try:
        yield
    except OSError as error:
        raise CliError(
            f"--plots {folder}: {error.strerror}",
            remedy="name a folder that can be written",
            status=status,
        ) from error


def _figure() -> Any:  # noqa: ANN401 - matplotlib is not there for all
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only plots need it
    except ModuleNotFoundError as error:
        raise CliError(
            "matplotlib is not installed",
            remedy="plots need it: pip install matplotlib",
            status=ExitStatus.USAGE,
        ) from error
    return Figure(figsize=SIZE_INCHES, layout="constrained")


def _tokens(figure: Any, results: Sequence[SimResult]) -> Any:  # noqa: ANN401
    steps = [step for result in results for step in result.steps]
    ended = [step.ended_s for step in steps]
    edges = np.linspace(0.0, max(ended, default=1.0), BINS + 1)
    axes = figure.subplots()
    for label, weights in (
        ("online", [float(step.online_tokens) for step in steps]),
        ("offline", [float(step.offline_served_tokens) for step in steps]),
    ):
        counts, _ = np.histogram(ended, bins=edges, weights=weights)
        axes.step(edges[:-1], counts / (edges[1] - edges[0]), where="post", label=label)
    axes.set(xlabel="simulated seconds", ylabel="tokens/s")
    axes.legend()
    return figure


def _latencies(figure: Any, results: Sequence[SimResult], slos: Sequence[Slo]) -> Any:  # noqa: ANN401
    latencies = Latencies.so_far(results)
    columns = figure.subplots(1, 2)
    for panel, metric, values in (
        (columns[0], Metric.TTFT, latencies.ttft_s),
        (columns[1], Metric.TBT, latencies.tbt_s),
    ):
        ordered = np.sort(np.array(values)) * 1e3
        if len(ordered):
            panel.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered))
            panel.set_xscale("log")
        for slo in slos:
            if slo.metric is metric:
                panel.axvline(slo.threshold_s * 1e3, linestyle="--", color="black")
        panel.set(xlabel=f"{metric.value.upper()} [ms]", ylabel="share of requests or tokens")
    return figure
