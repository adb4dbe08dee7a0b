"""The SLO matrix in virtual time: what holds, how many offline tokens/s, what a bound allows.

Run: python -m benchmarks.sim_matrix [--trace NAME ...] [--slo NAME ...] [--seconds N]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from itertools import repeat
from pathlib import Path

from benchmarks import bounds
from benchmarks.sim_matrix.cells import Cell, run
from benchmarks.sim_matrix.rows import OBJECTIVES, Base, Row, print_base, print_row, row_of, slos_of
from benchmarks.sim_matrix.traces import TRACES

TOLERANCES = (0.05, 0.10, 0.20, 0.50)
STATIC_ARMS = tuple(f"fixed:{n}" for n in (16, 32, 64, 96, 128, 192, 256, 512, 2048))


def matrix(trace: str, names: Iterable[str], *, seconds: float, seed: int, jobs: int) -> list[Row]:
    """All cells of a trace; prints as it goes."""
    empty = Cell(trace=trace, slos=(), online=True, offline=False, seconds=seconds, seed=seed)
    with ProcessPoolExecutor(jobs) as pool:
        offline = replace(empty, offline=True)
        arms = [replace(offline, arm=arm) for arm in STATIC_ARMS]
        alone, ceiling, *static = pool.map(run, (empty, replace(offline, online=False), *arms))
        base = Base(
            alone=alone,
            ceiling=ceiling,
            static=dict(zip(STATIC_ARMS, static, strict=True)),
            fixed_s=TRACES[trace].cost.empty_step_s,
        )
        print_base(trace, base)
        keys = [(name, tolerance) for name in names for tolerance in TOLERANCES]
        objectives = [slos_of(name, alone, tolerance) for name, tolerance in keys]
        cells = [replace(offline, slos=slos) for slos in objectives]
        aimd = pool.map(run, [replace(cell, arm="aimd") for cell in cells])
        rows = []
        for made in map(row_of, keys, objectives, pool.map(run, cells), aimd, repeat(base)):
            rows.append(made)
            print_row(made)
    return rows


def main() -> None:
    """Parse arguments, run, print, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", choices=sorted(TRACES), action="append")
    parser.add_argument("--slo", choices=sorted(OBJECTIVES), action="append")
    parser.add_argument("--seconds", type=bounds.seconds, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=bounds.count, default=2)
    parser.add_argument("--json", type=Path, default=None, help="where to write the rows")
    arguments = parser.parse_args()
    found = {
        trace: matrix(
            trace,
            arguments.slo or list(OBJECTIVES),
            seconds=arguments.seconds,
            seed=arguments.seed,
            jobs=arguments.jobs,
        )
        for trace in arguments.trace or ["steady"]
    }
    if arguments.json:
        plain = {trace: [asdict(made) for made in rows] for trace, rows in found.items()}
        arguments.json.write_text(json.dumps(plain, indent=1) + "\n")


if __name__ == "__main__":
    main()
