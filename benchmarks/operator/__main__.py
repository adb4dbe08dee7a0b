# ruff: noqa: A005 - a folder without __init__.py shadows no module
"""`python -m benchmarks.operator`: many BatchJobs and LLMServices on a real API server.

What it takes until all are observed, and what standing still costs. There is no node and no agent:
pods stay Pending, and batches wait for them.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import bounds
from benchmarks.claims import render, write_results
from benchmarks.operator.claims import claims_of
from benchmarks.operator.measurement import measure
from benchmarks.operator.workload import Size


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes `results/operator.json`; 1 when something failed."""
    parser = argparse.ArgumentParser(description="what many objects cost the operator")
    parser.add_argument("--jobs", type=bounds.count, default=1000)
    parser.add_argument("--services", type=bounds.count, default=50)
    parser.add_argument(
        "--patience-s", type=bounds.seconds, default=300.0, help="for all to be observed"
    )
    parser.add_argument(
        "--steady-s", type=bounds.seconds, default=60.0, help="how long to stand still"
    )
    parser.add_argument("--dry-run", action="store_true", help="write no result file")
    given = parser.parse_args(arguments)
    size = Size(jobs=given.jobs, services=given.services)
    with tempfile.TemporaryDirectory(prefix="weir-operator-") as name:
        found = measure(Path(name), size, patience_s=given.patience_s, steady_s=given.steady_s)
    claims = claims_of(size, found)
    print(render(claims))
    more: dict[str, Any] = {
        "objects": {"BatchJob": size.jobs, "LLMService": size.services, "watched": found.kinds},
        "calls_until_quiet": found.until_quiet.by_resource,
        "calls_steady": found.steady.by_resource,
        "warnings": found.warnings,
    }
    if not given.dry_run:
        command = shlex.join(["python", "-m", "benchmarks.operator", *(arguments or sys.argv[1:])])
        write_results("operator", claims, command=command, seeds=[0], more=more)
    else:
        print(more)
    return 0 if all(claim.met is not False for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
