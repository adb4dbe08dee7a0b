"""`weir profile`: a profile from the recorded steps of a live engine."""

from __future__ import annotations

from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from weir_cli.console import out
from weir_cli.sim.options import named, read_lines
from weir_cli.sim.outcome import check_output, write_text
from weir_engine.sim.recorded import RecordedProfile
from weir_engine.sim.recording import Recording

_KEPT_OUT = 5  # one step of so many judges the fit of the others


def profile(
    steps: Annotated[Path, typer.Argument(help="What an agent wrote to WEIR_STEP_FILE.")],
    output: Annotated[Path, typer.Option(help="File for the profile.")],
    judge: Annotated[
        Path | None, typer.Option(help="Steps of other traffic, to judge the profile on.")
    ] = None,
) -> None:
    """Make a profile of a live engine from its recorded steps, for `weir sim --profile FILE`.

    Without --judge the last fifth of the steps is kept out of the fit and judged.
    """
    _make(steps, output, judge)


def _make(steps: Path, output: Path, judge: Path | None) -> None:
    """Fits, judges, writes, prints.

    Raises:
        CliError: a file cannot be used, or too few steps were recorded.
    """
    check_output("--output", output)
    recording = _read(steps)
    if judge is None:
        kept = len(recording.steps) - len(recording.steps) // _KEPT_OUT
        judged = recording.steps[kept:]
        recording = replace(recording, steps=recording.steps[:kept])
    else:
        judged = _read(judge).steps
    with named(str(steps)):
        found = RecordedProfile.fit(recording)
    error_share = found.cost.error(judged) if judged else None
    answer = {
        **found.plain(),
        "fitted_steps": len(recording.steps),
        "judged_steps": len(judged),
        "judged_error": error_share,
    }
    write_text(output, dumps(answer, indent=1) + "\n")
    if error_share is not None:
        out.print(
            f"{len(recording.steps)} steps fitted; "
            f"{error_share:.1%} mean error on {len(judged)} others"
        )
    out.print(f"wrote {output}", markup=False)


def _read(path: Path) -> Recording:
    """The recording of a file.

    Raises:
        CliError: the file or a row of it cannot be used.
    """
    with named(str(path)):
        return Recording.read(read_lines(path))
