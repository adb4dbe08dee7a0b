"""Each paper's headlines in the simulator, against its own baselines: one command a paper.

Run: python -m benchmarks.papers hygen|echo|...|all --data FOLDER [--jobs N] [--seeds N] [--quick]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks import bounds
from benchmarks.claims import render
from benchmarks.papers.paper import PAPERS, SEEDS, Options, PaperResult, Table, write


def available() -> tuple[str, ...]:
    """The papers whose benchmark is there."""
    return tuple(
        name for name in PAPERS if importlib.util.find_spec(f"benchmarks.papers.{name}") is not None
    )


def run(name: str, options: Options) -> PaperResult:
    """Run one paper's benchmark."""
    module = importlib.import_module(f"benchmarks.papers.{name}")
    result: PaperResult = module.run(options)
    return result


def main(arguments: list[str] | None = None) -> int:
    """Parse arguments, run, print; writes results unless the run is quick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paper", choices=(*available(), "all"))
    parser.add_argument("--data", type=Path, required=True, help="folder of traces and profiles")
    parser.add_argument("--jobs", type=bounds.count, default=1, help="processes")
    parser.add_argument(
        "--seeds", type=bounds.count, help="seeds 1 to this number (default: 3, bros 6)"
    )
    parser.add_argument("--quick", action="store_true", help="shorter; writes no result file")
    parser.add_argument("--only", action="append", default=[], help="a part of a paper")
    parser.add_argument("--resume", type=Path, help="folder that keeps finished parts")
    parser.add_argument(
        "--finished", action="store_true", help="write what --resume has; run nothing"
    )
    given = parser.parse_args(arguments)
    if given.finished and given.resume is None:
        parser.error("--finished needs --resume, the folder of finished parts")
    options = Options(
        data=given.data,
        jobs=given.jobs,
        quick=given.quick,
        only=tuple(given.only),
        resume=given.resume,
        finished_only=given.finished,
    )
    for name in available() if given.paper == "all" else (given.paper,):
        seeds = range(1, (given.seeds or SEEDS.get(name, 3)) + 1)
        own = replace(options, seeds=tuple(seeds))
        result = run(name, own)
        for note in result.notes:
            print(f"\n{note}")
        for table in result.tables:
            _print(table)
        print()
        print(render(result.claims))
        if not options.quick and not options.only:
            print(f"written: {write(name, result, own)}")
    return 0


def _print(table: Table) -> None:
    lines = [table.header, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.header))]
    print(f"\n{table.title}")
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
