"""The ideas of preset `weir`, each with and without, on two traces in the simulator.

Run: python -m benchmarks.weir_parts [--trace NAME ...] [--folder FOLDER]. Runs that have a file in
the folder are not made again. Writes benchmarks/results/weir_parts.json.
"""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.claims import Claim, write_results
from benchmarks.weir_parts.run import TOLERANCE, Done, objective_of, run
from benchmarks.weir_parts.traces import TRACES
from benchmarks.weir_parts.variants import Cell, cells
from weir_engine.config import Slo

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "weir_parts"
SEEDS = (1, 2)


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs that are there: a file each in ``folder``."""

    folder: Path

    def file(self, cell: Cell, seed: int) -> Path:
        """Where a run is kept."""
        return self.folder / f"{cell.trace}.{cell.objective}.{cell.variant}.{seed}.json"

    def seeds_of(self, trace: str) -> list[int]:
        """The seeds that every cell of a trace has."""
        own = [cell for cell in cells() if cell.trace == trace]
        return [seed for seed in SEEDS if all(self.file(cell, seed).exists() for cell in own)]

    def of(self, cell: Cell) -> list[Done]:
        """What a cell came to, for each seed that every cell of its trace has."""
        return [
            Done(**json.loads(self.file(cell, seed).read_text()))
            for seed in self.seeds_of(cell.trace)
        ]


def main() -> None:
    """Runs what is missing, prints and writes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weir_parts")
    parser.add_argument("--trace", choices=sorted(TRACES), action="append")
    parser.add_argument("--folder", type=Path, default=CACHE)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    runs = Runs(given.folder)
    slos: dict[tuple[str, str, int], tuple[Slo, ...]] = {}
    for seed, cell in product(SEEDS, cells()):
        path = runs.file(cell, seed)
        if path.exists() or cell.trace not in (given.trace or TRACES):
            continue
        key = (cell.trace, cell.objective, seed)
        if key not in slos:
            slos[key] = objective_of(*key)
        done = run(cell, slos[key], seed)
        path.write_text(json.dumps(asdict(done)))
        print(f"{path.stem:36} {done}", flush=True)
    report(runs)


def report(runs: Runs) -> None:
    """All cells over the seeds that every cell of a trace has; the whole preset has to hold."""
    if not all(runs.seeds_of(trace) for trace in TRACES):
        print("some runs are missing: no result was written")
        return
    wholes = {cell: runs.of(cell) for cell in cells() if cell.variant == "weir"}
    rows = []
    for cell in cells():
        found, whole = runs.of(cell), wholes[replace(cell, variant="weir")]
        shares = [a.served_tokens_s / b.served_tokens_s for a, b in zip(found, whole, strict=True)]
        rows.append(_row(cell, runs.seeds_of(cell.trace), found, shares))
        print(
            f"{cell.trace:6} {cell.objective:9} {cell.variant:14} {mean(shares):.3f} x weir  "
            f"latency over SLO {mean(done.ratio for done in found):.3f}  preemptions "
            f"{mean(done.preemptions for done in found):.0f}  due in time "
            f"{mean(done.due_in_time for done in found):.0%}"
        )
    claims = [_held(cell, [done.ratio for done in whole]) for cell, whole in wholes.items()]
    command = shlex.join(["python", "-m", "benchmarks.weir_parts"])
    write_results("weir_parts", claims, command=command, seeds=SEEDS, more={"rows": rows})


def _row(cell: Cell, seeds: list[int], found: list[Done], shares: list[float]) -> dict[str, Any]:
    return {
        **asdict(cell),
        "seeds": seeds,
        "offline_over_weir": [round(share, 4) for share in shares],
        "runs": [asdict(done) for done in found],
    }


def _held(cell: Cell, ratios: list[float]) -> Claim:
    return Claim(
        id=f"weir-parts/{cell.trace}/{cell.objective}",
        what=f"preset weir, simulated, trace {cell.trace}: measured {cell.objective} over its SLO "
        f"of online alone + {TOLERANCE - 1:.0%}",
        unit="x",
        value=round(mean(ratios), 3),
        low=round(min(ratios), 3),
        high=round(max(ratios), 3),
        target="<= 1",
    )


if __name__ == "__main__":
    main()
