"""`weir profile`: a hardware profile from the recorded steps of a live engine."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from weir_cli.console import out
from weir_cli.errors import CliError, ExitStatus
from weir_cli.sim.inputs import read_lines
from weir_cli.sim.outcome import write_text
from weir_engine.errors import ConfigError
from weir_engine.sim.recorded import RecordedCost, RecordedStep, recorded_steps


def profile(
    steps: Annotated[
        Path, typer.Argument(help="JSONL: prefills as [new, computed], decodes, seconds.")
    ],
    output: Annotated[Path, typer.Option(help="File for the profile.")],
    judge: Annotated[
        Path | None, typer.Option(help="Steps of another trace, to judge the profile on.")
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, help="KV blocks of the engine.")] = 1024,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens of a KV block.")] = 16,
) -> None:
    """Make a profile of a live engine from its recorded steps, for `weir sim --profile FILE`.

    Without --judge the last fifth of the steps is kept out of the fit and judged.
    """
    recorded = _read(steps)
    if judge is None:
        kept = len(recorded) * 4 // 5
        fitted, judged = recorded[:kept], recorded[kept:]
    else:
        fitted, judged = recorded, _read(judge)
    cost = _fit(fitted)
    answer = {
        "format": "weir-recorded-profile-1",
        "block_size_tokens": block_size,
        "total_blocks": blocks,
        "fitted_steps": len(fitted),
        "judged_steps": len(judged),
        "judged_error": cost.error(judged) if judged else None,
        **cost.plain(),
    }
    write_text(output, dumps(answer, indent=1) + "\n")
    if judged:
        out.print(
            f"{len(fitted)} steps fitted; "
            f"{cost.error(judged):.1%} mean error on {len(judged)} others"
        )
    out.print(f"wrote {output}")


def _read(path: Path) -> tuple[RecordedStep, ...]:
    """The steps of a file.

    Raises:
        CliError: the file or a row of it cannot be used.
    """
    try:
        return recorded_steps(read_lines(path))
    except ConfigError as error:
        raise CliError(f"{path}: {error}", status=ExitStatus.USAGE) from error


def _fit(steps: tuple[RecordedStep, ...]) -> RecordedCost:
    """The cost of the steps.

    Raises:
        CliError: there are too few.
    """
    try:
        return RecordedCost.fit(steps)
    except ConfigError as error:
        raise CliError(str(error), status=ExitStatus.USAGE) from error
