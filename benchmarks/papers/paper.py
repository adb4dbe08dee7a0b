"""What every paper's benchmark gets and gives: options in, claims, notes and tables out.

How a run is simulated belongs to the paper's own module; nothing here knows a scheduler.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol, TypeVar

from benchmarks.claims import RESULTS, Claim, write_results

PAPERS = ("hygen", "echo", "blendserve", "omniserve", "bros")
"""Modules of this package that may have a ``run``; those without one are not there yet."""

SEEDS = {"bros": 6}
"""Seeds of a paper's studies at most, where three do not tell: BROS and Weir differ by less than
their runs do."""

X = TypeVar("X")
Y = TypeVar("Y")


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to run: ``data`` is the folder of traces and profiles, ``jobs`` the processes.

    ``quick`` shortens every run for a look; its results are not written. ``only`` limits a paper to
    parts that it names. ``resume`` is a folder that keeps what a part came to, for the next time;
    with ``finished_only`` nothing is run: parts that are not there are not measured.
    """

    data: Path
    jobs: int = 1
    seeds: tuple[int, ...] = (1, 2, 3)
    quick: bool = False
    only: tuple[str, ...] = ()
    resume: Path | None = None
    finished_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table for the paper's page: a title, a header and rows of text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperResult:
    """What a paper's benchmark came to.

    ``notes`` are sentences that stand first on the page, the headlines that were not reached and
    the measured reason before all others.
    """

    claims: tuple[Claim, ...]
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)


class Study(Protocol):
    """A part of a paper's benchmark that ``--only`` can name."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...


S = TypeVar("S", bound=Study)


def chosen(options: Options, studies: Sequence[S]) -> list[S]:
    """The studies to run: of a quick run the first at most."""
    wanted = studies[:1] if options.quick else studies
    return [study for study in wanted if not options.only or study.name in options.only]


def joined(results: Iterable[PaperResult]) -> PaperResult:
    """What several studies came to, as one."""
    found = list(results)
    return PaperResult(
        claims=tuple(claim for result in found for claim in result.claims),
        notes=tuple(note for result in found for note in result.notes),
        tables=tuple(table for result in found for table in result.tables),
    )


def write(name: str, result: PaperResult, options: Options, folder: Path = RESULTS) -> Path:
    """Writes `results/NAME.json`, from which the paper's page is generated."""
    command = f"python -m benchmarks.papers {name} --data DATA"
    return write_results(
        name,
        result.claims,
        command=command,
        seeds=options.seeds,
        folder=folder,
        more={
            "notes": list(result.notes),
            "tables": [asdict(table) for table in result.tables],
            **result.more,
        },
    )


def spread(
    claim_id: str, what: str, unit: str, values: Sequence[float], target: str | None = None
) -> Claim:
    """A claim from one value a seed: the mean, with the smallest and the largest."""
    return Claim(
        id=claim_id,
        what=what,
        unit=unit,
        value=fmean(values) if values else None,
        low=min(values, default=None),
        high=max(values, default=None),
        target=target,
    )


def parallel(options: Options, work: Callable[[X], Y], cells: Iterable[X]) -> list[Y]:
    """``work`` on each cell, in the order given, in as many processes as the options allow."""
    if options.jobs <= 1:
        return [work(cell) for cell in cells]
    with ProcessPoolExecutor(options.jobs) as pool:
        return list(pool.map(work, cells))


def kept(options: Options, paper: str, part: str, make: Callable[[], Any]) -> Any:  # noqa: ANN401
    """What ``make`` gives, as JSON has it; read from the resume folder where it was kept before.

    None: it is not there, and nothing is to be run.
    """
    if options.resume is None or options.quick:
        return json.loads(json.dumps(make()))
    path = options.resume / paper / f"{part.replace('/', '-')}.json"
    if not path.exists():
        if options.finished_only:
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(make()), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def read_rows(path: Path, columns: Sequence[str]) -> list[tuple[float, ...]]:
    """The named columns of a CSV file, gzip-compressed or not, as numbers.

    Raises:
        FileNotFoundError: no such file; --data names the folder.
        KeyError: a column is missing.
    """
    return list(_read_rows(path, tuple(columns)))


@cache
def _read_rows(path: Path, columns: tuple[str, ...]) -> tuple[tuple[float, ...], ...]:
    """Read once a process: runs of one benchmark share their traces."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    with io.StringIO(text, newline="") as lines:
        return tuple(tuple(float(row[name]) for name in columns) for row in csv.DictReader(lines))
