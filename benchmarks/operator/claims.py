"""What a run of many objects says: the issue's four figures, and that nothing failed."""

from __future__ import annotations

import os
from dataclasses import replace

from benchmarks.claims import Claim
from benchmarks.operator.cost import calls_an_hour
from benchmarks.operator.measurement import Measured
from benchmarks.operator.workload import Size

CHART_LIMIT_MIB = 512
CORES = os.cpu_count() or 1


def claims_of(size: Size, found: Measured) -> list[Claim]:
    """All claims of one run; in a table of all benchmarks' claims each says whose it is."""
    made = [
        *_outcome(size, found),
        *_calls_until_quiet(size, found),
        *_standing_still(found),
        *_resources(size, found),
    ]
    return [replace(claim, what=f"operator: {claim.what}") for claim in made]


def _outcome(size: Size, found: Measured) -> list[Claim]:
    what = f"{size.jobs} BatchJobs and {size.services} LLMServices on an API server alone"
    load = f"load average {found.load_average:.1f} on {CORES} cores"
    if found.load_average > CORES:
        load = f"taken on a busy machine ({load})"
    return [
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
    ]


def _calls_until_quiet(size: Size, found: Measured) -> list[Claim]:
    spent = found.until_quiet
    return [
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
    ]


def _standing_still(found: Measured) -> list[Claim]:
    steady = found.steady
    window = f"{found.steady_s:.0f} s in which nothing changed"
    return [
        Claim(
            id="operator/steady/writes",
            what=f"writes in {window}, the Lease left out",
            unit="count",
            value=float(steady.writes),
            target="== 0",
        ),
        Claim(
            id="operator/steady/calls",
            what=f"API calls an hour of standing still: {window}, its Lease included, "
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
    ]


def _resources(size: Size, found: Measured) -> list[Claim]:
    return [
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
