"""Trace files: recorded online requests, read strictly and fitted to a small model.

A file is CSV, gzip-compressed or not, with the columns arrival_s, input_tokens, output_tokens.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from weir_cli.errors import CliError, ExitStatus

COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
BUNDLED = "azure2023_conv_excerpt.csv"
MAX_ROWS = 5_000_000
REMEDY_FORMAT = (
    "a trace is CSV (or CSV.gz) with the header arrival_s,input_tokens,output_tokens: seconds, "
    "then two counts of tokens, ordered by arrival"
)


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    """One recorded request: when it came, and how long its prompt and its answer were."""

    arrival_s: float
    input_tokens: int
    output_tokens: int


def read_trace(path: Path) -> list[TraceRow]:
    """The rows of a trace file.

    Raises:
        CliError: names the file, the line, the column and the remedy.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CliError(
            f"--trace: {path}: {error.strerror}", remedy="check the path", status=ExitStatus.USAGE
        ) from error
    return _parse(content, str(path))


def bundled_trace() -> list[TraceRow]:
    """Ten minutes of the Azure 2023 conversation trace (CC BY 4.0, see data/README.md)."""
    content = resources.files("weir_cli.demo").joinpath("data", BUNDLED).read_bytes()
    return _parse(content, BUNDLED)


def fit(
    rows: list[TraceRow],
    *,
    rate_per_s: float,
    duration_s: float,
    max_input_tokens: int,
    max_output_tokens: int,
) -> list[TraceRow]:
    """The beginning of a trace, its time scaled to a mean rate and its lengths to a small model.

    The first ``rate_per_s * duration_s`` rows are taken (fewer when the trace is shorter) and their
    times scaled by one factor, so bursts stay bursts; lengths are clipped.
    """
    taken = rows[: max(1, round(rate_per_s * duration_s))]
    first_s = taken[0].arrival_s
    span_s = taken[-1].arrival_s - first_s
    # Rows that all arrive at once have no rate of their own: they stay one burst.
    factor = (len(taken) - 1) / rate_per_s / span_s if span_s > 0 else 1.0
    return [
        TraceRow(
            arrival_s=(row.arrival_s - first_s) * factor,
            input_tokens=min(row.input_tokens, max_input_tokens),
            output_tokens=min(row.output_tokens, max_output_tokens),
        )
        for row in taken
    ]


def _parse(content: bytes, name: str) -> list[TraceRow]:
    lines = csv.reader(io.StringIO(_text(content, name)))
    try:
        header = [column.strip() for column in next(lines, [])]
        places = _places(header, name)
        return _checked(_rows(lines, header, places, name), name)
    except csv.Error as error:
        raise _wrong(f"{name}, line {lines.line_num}: {error}") from error


def _text(content: bytes, name: str) -> str:
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise _wrong(f"{name}: broken gzip file ({error})") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise _wrong(f"{name}, line {line}: not UTF-8 text") from error


def _places(header: list[str], name: str) -> dict[str, int]:
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        raise _wrong(
            f"{name}, line 1: no column {', '.join(missing)}; the columns are "
            f"{', '.join(header) or 'none'}"
        )
    return {column: header.index(column) for column in COLUMNS}


def _rows(
    lines: Iterator[list[str]], header: list[str], places: dict[str, int], name: str
) -> Iterator[tuple[int, TraceRow]]:
    for number, cells in enumerate(lines, start=2):
        if not cells:
            continue
        if number > MAX_ROWS:
            raise _wrong(f"{name}: more than {MAX_ROWS:,} lines; cut the file")
        if len(cells) != len(header):
            raise _wrong(
                f"{name}, line {number}: {len(cells)} columns where the header has {len(header)}"
            )
        yield (
            number,
            TraceRow(
                arrival_s=_number(cells, places, "arrival_s", name, number),
                input_tokens=_count(cells, places, "input_tokens", name, number),
                output_tokens=_count(cells, places, "output_tokens", name, number),
            ),
        )


def _checked(rows: Iterator[tuple[int, TraceRow]], name: str) -> list[TraceRow]:
    checked: list[TraceRow] = []
    for number, row in rows:
        if checked and row.arrival_s < checked[-1].arrival_s:
            raise _wrong(
                f"{name}, line {number}, column arrival_s: {row.arrival_s} comes after "
                f"{checked[-1].arrival_s}; sort the file by arrival_s"
            )
        checked.append(row)
    if not checked:
        raise _wrong(f"{name}: no requests in it")
    return checked


def _number(cells: list[str], places: dict[str, int], column: str, name: str, line: int) -> float:
    text = cells[places[column]]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise _wrong(f"{name}, line {line}, column {column}: {text!r} is not a number ≥ 0")
    return value


def _count(cells: list[str], places: dict[str, int], column: str, name: str, line: int) -> int:
    value = _number(cells, places, column, name, line)
    if value < 1 or value != int(value):
        raise _wrong(
            f"{name}, line {line}, column {column}: {cells[places[column]]!r} is not a whole "
            "number ≥ 1"
        )
    return int(value)


def _wrong(message: str) -> CliError:
    return CliError(f"--trace: {message}", remedy=REMEDY_FORMAT, status=ExitStatus.USAGE)
