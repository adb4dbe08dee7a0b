"""The picture of the comparison: offline tokens a second by cell and arm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from benchmarks.colocation.judge import CellResult, Verdict

COLOURS = {"best static": "#8c8c8c", "AIMD": "#d98c3f", "Weir": "#2f7fb8"}


def plot(cells: Sequence[CellResult], path: Path) -> Path:
    """Bars of served tokens a second; hollow where the arm misses the cell's SLO."""
    names = [f"{result.workload}\n{result.cell.name}" for result in cells]
    figure, axes = plt.subplots(figsize=(max(6.0, 0.75 * len(cells)), 4.5))
    for offset, (label, colour) in enumerate(COLOURS.items()):
        for index, result in enumerate(cells):
            verdict = _verdict(result, label)
            if verdict is None:
                continue
            axes.bar(
                index + (offset - 1) * 0.27,
                verdict.served.mean,
                width=0.25,
                color=colour if verdict.holds else "none",
                edgecolor=colour,
                yerr=[
                    [verdict.served.mean - verdict.served.low],
                    [verdict.served.high - verdict.served.mean],
                ],
            )
        axes.bar([0], [0], color=colour, label=label)
    for index, result in enumerate(cells):
        if result.bound_per_s:
            axes.hlines(result.bound_per_s, index - 0.42, index + 0.42, colors="black", lw=1)
    axes.plot([], [], color="black", lw=1, label="bound (1 - c0/S - u)")
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
    axes.set_ylabel("offline tokens/s served (hollow: SLO missed)")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _verdict(result: CellResult, label: str) -> Verdict | None:
    if label == "best static":
        return result.best_static()
    return result.best_gateway() if label == "AIMD" else result.verdicts.get(label.lower())
