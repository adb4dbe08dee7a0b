# ruff: noqa: A005 - a folder without __init__.py shadows no module
"""`python -m benchmarks.operator`: many BatchJobs and LLMServices on a real API server.

What it takes until all are observed, and what standing still costs. There is no node and no agent:
pods stay Pending, and batches wait for them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.claims import Claim, render, write_results
from benchmarks.operator.cost import Calls, calls_an_hour, count
from benchmarks.operator.workload import Size, namespaces, objects
from benchmarks.operator.world import World

POLL_S = 2.0
QUIET_S = 12.0
"""Longer than two looks at the control plane, and than two status writes of one object."""
CHART_LIMIT_MIB = 512
CORES = os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run. Seconds count from the first create."""

    created_s: float
    observed_s: float | None
    observed: int
    quiet_s: float
    until_quiet: Calls
    cpu_until_quiet_s: float
    steady: Calls
    steady_s: float
    steady_cores: float
    memory_mib: float
    memory_peak_mib: float
    kinds: dict[str, int]
    failed_reconciles: float
    warnings: dict[str, int]
    load_average: float


def measure(folder: Path, size: Size, *, patience_s: float, steady_s: float) -> Measured:
    """One run: create, wait until all are observed and all is quiet, then stand still."""
    with World(folder, batches=2 * size.jobs) as world:
        world.create(namespaces(size))
        start, begun_s, cpu_s = world.cluster.audit.position(), time.monotonic(), world.cpu_s()
        world.create(objects(size))
        created_s = time.monotonic() - begun_s
        observed, observed_s = _until_observed(world, size, begun_s, patience_s)
        quiet_s = _until_quiet(world, begun_s, patience_s)
        until_quiet = _calls(world, start)
        cpu_until_quiet_s = world.cpu_s() - cpu_s

        position, at_s, cpu_s = world.cluster.audit.position(), time.monotonic(), world.cpu_s()
        time.sleep(steady_s)
        passed_s = time.monotonic() - at_s
        now_mib, peak_mib = world.memory_mib()
        return Measured(
            created_s=created_s,
            observed_s=observed_s,
            observed=observed,
            quiet_s=quiet_s,
            until_quiet=until_quiet,
            cpu_until_quiet_s=cpu_until_quiet_s,
            steady=_calls(world, position),
            steady_s=passed_s,
            steady_cores=(world.cpu_s() - cpu_s) / passed_s,
            memory_mib=now_mib,
            memory_peak_mib=peak_mib,
            kinds=_kinds(world),
            failed_reconciles=_failed_reconciles(world),
            warnings=world.failures(),
            load_average=os.getloadavg()[1],
        )


def _until_observed(
    world: World, size: Size, begun_s: float, patience_s: float
) -> tuple[int, float | None]:
    """How many were observed, and when all were; None: not within ``patience_s``."""
    while True:
        found, now_s = world.observed(), time.monotonic() - begun_s
        print(f"{now_s:6.0f} s  {found} of {size.objects} observed", flush=True)
        if found == size.objects:
            return found, now_s
        if now_s > patience_s:
            return found, None
        time.sleep(POLL_S)


def _until_quiet(world: World, begun_s: float, patience_s: float) -> float:
    """When the operator had written for the last time, but for its Lease."""
    while True:
        position, at_s = world.cluster.audit.position(), time.monotonic() - begun_s
        time.sleep(QUIET_S)
        if not _calls(world, position).writes or at_s > patience_s:
            return at_s


def _calls(world: World, since: int) -> Calls:
    calls = world.cluster.audit.calls(since=since)
    return count(calls, user_agent=world.operator.user_agent)


def _samples(world: World, family: str) -> list[tuple[dict[str, str], float]]:
    found = text_string_to_metric_families(world.operator.get("metrics"))
    return [
        (sample.labels, sample.value)
        for item in found
        if item.name == family
        for sample in item.samples
        if not sample.name.endswith("_created")
    ]


def _kinds(world: World) -> dict[str, int]:
    samples = _samples(world, "weir_operator_objects")
    return {labels["kind"]: int(value) for labels, value in samples}


def _failed_reconciles(world: World) -> float:
    samples = _samples(world, "weir_operator_reconciles")
    return sum(value for labels, value in samples if labels["outcome"] != "done")


def claims_of(size: Size, found: Measured) -> list[Claim]:
    """The issue's four figures, and that nothing failed."""
    what = f"{size.jobs} BatchJobs and {size.services} LLMServices on an API server alone"
    load = f"load average {found.load_average:.1f} on {CORES} cores"
    if found.load_average > CORES:
        load = f"taken on a busy machine ({load})"
    spent, steady = found.until_quiet, found.steady
    made = [
        Claim(
            id="operator/observed/share",
            what=f"{what}: observed within the time given",
            unit="share",
            value=found.observed / size.objects,
            target="== 1",
        ),
        Claim(
            id="operator/observed/time",
            what=f"{what}: from the first create to all observed, {found.created_s:.0f} s of it "
            f"kubectl's creating; status writes are bounded to 20 a second; {load}",
            unit="s",
            value=found.observed_s,
        ),
        Claim(
            id="operator/errors",
            what="reconciles that failed",
            unit="count",
            value=found.failed_reconciles,
            target="== 0",
        ),
        Claim(
            id="operator/warnings",
            what="lines that the operator logged as a warning or worse; the result file has them",
            unit="count",
            value=float(sum(found.warnings.values())),
        ),
        Claim(
            id="operator/calls/object",
            what=f"API calls an object until all was quiet after {found.quiet_s:.0f} s, children "
            "and Events included",
            unit="calls",
            value=spent.objects / size.objects,
        ),
        Claim(
            id="operator/calls/batchjob",
            what="API calls a BatchJob, without Events",
            unit="calls",
            value=spent.jobs / size.jobs,
        ),
        Claim(
            id="operator/calls/llmservice",
            what="API calls an LLMService with its five children, without Events",
            unit="calls",
            value=spent.services / size.services,
        ),
        Claim(
            id="operator/steady/writes",
            what=f"writes in {steady_text(found)}, the Lease left out",
            unit="count",
            value=float(steady.writes),
            target="== 0",
        ),
        Claim(
            id="operator/steady/calls",
            what=f"API calls an hour of standing still: {steady_text(found)}, its Lease included, "
            "and the lists and watches that an hour has",
            unit="calls/h",
            value=calls_an_hour(steady, found.steady_s, kinds=found.kinds),
        ),
        Claim(
            id="operator/steady/cores",
            what="cores that the operator uses standing still",
            unit="cores",
            value=found.steady_cores,
        ),
        Claim(
            id="operator/cpu/object",
            what="processor time of the operator an object until all was quiet",
            unit="ms",
            value=1e3 * found.cpu_until_quiet_s / size.objects,
        ),
        Claim(
            id="operator/memory",
            what=f"resident memory of the operator at its peak; {found.memory_mib:.0f} MiB at the "
            f"end; the chart's limit is {CHART_LIMIT_MIB} MiB",
            unit="MiB",
            value=found.memory_peak_mib,
            target=f"<= {CHART_LIMIT_MIB}",
        ),
    ]
    # In a table of all claims each says whose it is.
    return [replace(claim, what=f"operator: {claim.what}") for claim in made]


def steady_text(found: Measured) -> str:
    """The window in which nothing was asked for."""
    return f"{found.steady_s:.0f} s in which nothing changed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes `results/operator.json`; 1 when something failed."""
    parser = argparse.ArgumentParser(description="what many objects cost the operator")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--services", type=int, default=50)
    parser.add_argument("--patience-s", type=float, default=300.0, help="for all to be observed")
    parser.add_argument("--steady-s", type=float, default=60.0, help="how long to stand still")
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
