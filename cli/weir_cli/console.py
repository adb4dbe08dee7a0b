"""How the commands speak: results on stdout, everything else on stderr.

On a terminal there are live bars; without one the same facts come as plain lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from typing_extensions import override

from weir_cli.errors import CliError


class _Results(Console):
    @override
    def on_broken_pipe(self) -> None:
        """Leaves it to ``main`` what a reader that has gone means: rich takes it for a failure.

        Raises:
            BrokenPipeError: always.
        """
        raise BrokenPipeError


@contextmanager
def reader_may_go() -> Iterator[None]:
    """The same for what is written without rich: typer takes an error with a number for a failure.

    Raises:
        BrokenPipeError: the reader has gone.
    """
    try:
        yield
    except BrokenPipeError:
        raise BrokenPipeError from None


out = _Results(soft_wrap=True, highlight=False, emoji=False)  # users name things with colons
err = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def show_error(error: CliError) -> None:
    """Prints an error and its remedy."""
    err.print("error:", style="bold red", end=" ")
    err.print(error.message, markup=False)
    if error.remedy:
        err.print("remedy:", style="bold", end=" ")
        err.print(error.remedy, markup=False)


def show_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table; without a terminal, cells between tabs and no heading."""
    if not out.is_terminal:
        with reader_may_go():
            for row in rows:
                typer.echo("\t".join(row))
        return
    show_table(columns, rows)


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table for a terminal; one that is wider than that goes on in the next row.

    Nothing is cut: ids are there to be copied.
    """
    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    if sum(widths) + 3 * len(widths) + 1 > out.width:  # with the table's own lines
        for row in (columns, *rows):
            cells = map(set_cell_size, row, widths)
            out.print("  ".join(cells).rstrip(), markup=False)
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*map(escape, row))
    out.print(table)


def transfer_bar() -> Progress:
    """A progress bar over bytes; silent without a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )


def lines_bar() -> Progress:
    """A progress bar over the lines of a batch; silent without a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeRemainingColumn(),
        console=err,
        disable=not err.is_terminal,
    )
