"""One run on a real API server: create, wait until all is quiet, then stand still and count."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.operator.cost import Calls, count
from benchmarks.operator.workload import Size, namespaces, objects
from benchmarks.operator.world import World

POLL_S = 2.0
QUIET_S = 12.0
"""Longer than two looks at the control plane, and than two status writes of one object."""


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
