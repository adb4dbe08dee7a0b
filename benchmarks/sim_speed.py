"""How long a simulated replica-day takes on one core, as process CPU time.

Run: python -m benchmarks.sim_speed [--trace FILE] [--seconds N] [--where]. Without a trace a
day of Poisson arrivals stands in. Both builds of the engine are run where `make compiled` has made
one, in turns, and must simulate the same. Writes benchmarks/results/sim_speed.json.
"""

from __future__ import annotations

import argparse
import cProfile
import gzip
import hashlib
import json
import pstats
import resource
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import numpy as np

from benchmarks import bounds
from benchmarks.claims import Claim, write_results
from benchmarks.engine_builds import builds, run_in, this_build
from weir_engine.config import Metric, Policy, Slo
from weir_engine.sim.preset_run import preset_simulation
from weir_engine.sim.profile_cost import ProfileCost
from weir_engine.sim.profiles import load_profile
from weir_engine.sim.records import SimResult
from weir_engine.sim.replica import Replica
from weir_engine.sim.traces import Cut, plain_csv
from weir_engine.sim.workload import (
    Documents,
    Lengths,
    RequestSpec,
    document_questions,
    online_requests,
    poisson_times,
)

DAY_S = 86_400.0
SLOS = (Slo(metric=Metric.TBT, statistic="p99", threshold_s=0.1),)


WORKLOADS = ("online", "co-located")


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One run: CPU seconds, steps, what of a day was simulated, and with what ``result``.

    ``result`` is a digest of every step and every request, ``build`` the engine's.
    """

    build: str
    cpu_s: float
    steps: int
    simulated_s: float
    result: str
    peak_mib: float

    @property
    def day_minutes(self) -> float:
        """CPU minutes of a day at this pace."""
        return self.cpu_s * DAY_S / self.simulated_s / 60


def online_of(trace: Path | None, seconds: float, seed: int) -> tuple[RequestSpec, ...]:
    """The first ``seconds`` of a trace, or arrivals at its mean: 4 a second, 745 in, 90 out."""
    if trace is None:
        rng = np.random.default_rng((seed, 30))
        return online_requests(
            rng,
            poisson_times(rng, rate_s=4.0, duration_s=seconds),
            prompt=Lengths(median=624, sigma=0.6, low=8, high=4000),
            output=Lengths(median=31, sigma=1.3, low=1, high=700),
        )
    with gzip.open(trace, "rt", encoding="utf-8") as lines:
        return Cut(seconds=seconds, longest_tokens=8192).of(plain_csv(lines))


def offline_of(seed: int, count: int) -> tuple[RequestSpec, ...]:
    """Documents with questions, more than the run can finish."""
    documents = Documents(
        count=count,
        questions=8,
        document=Lengths(median=2500, sigma=0.4, low=200, high=6000),
        question=Lengths(median=60, sigma=0.5, low=10, high=400),
        output=Lengths(median=120, sigma=0.5, low=8, high=500),
    )
    specs = document_questions(np.random.default_rng((seed, 31)), documents)
    return tuple(sorted(specs, key=lambda spec: (spec.group or "", spec.id)))


def timed(name: str, trace: Path | None, seconds: float, seed: int, *, offline: bool) -> Timed:
    """One replica, with or without offline work."""
    profile = load_profile(name)
    shape = profile.engine_shape(max_batched_tokens=2048, max_seqs=256)
    blocks, slots = (shape.total_blocks * 9 // 10, 128) if offline else (0, 0)
    replica = Replica(
        cost=ProfileCost(profile=profile),
        shape=shape,
        slos=SLOS,
        policy=Policy(offline_kv_blocks=blocks, offline_seq_slots=slots),
        seed=seed,
    )
    simulation = preset_simulation(
        replica,
        "weir",
        online=online_of(trace, seconds, seed),
        offline=offline_of(seed, max(50, int(seconds))) if offline else (),
    )
    started_s = time.process_time()
    result = simulation.run(until_s=seconds)
    return Timed(
        build=this_build(),
        cpu_s=time.process_time() - started_s,
        steps=len(result.steps),
        simulated_s=result.ended_s,
        result=digest(result),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def digest(result: SimResult) -> str:
    """The same for equal results only: all digits of all numbers of all records."""
    lines = [repr(tuple(step)) for step in result.steps]
    lines += [repr(astuple(request)) for request in result.online]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class DifferentResultError(Exception):
    """The builds of the engine do not simulate the same."""


def in_turns(
    workload: str, given: argparse.Namespace, seeds: Sequence[int]
) -> dict[str, list[Timed]]:
    """Runs by build, each seed on one build after the other.

    Raises:
        DifferentResultError: a seed's results differ between builds.
    """
    runs: dict[str, list[Timed]] = {build: [] for build in builds()}
    what = ["--workload", workload, "--profile", given.profile, "--seconds", str(given.seconds)]
    if given.trace is not None:
        what += ["--trace", str(given.trace.resolve())]
    for seed in seeds:
        for build, done in runs.items():
            arguments = [*what, "--seed", str(seed)]
            done.append(Timed(**run_in(build, "benchmarks.sim_speed", arguments)))
        if len({done[-1].result for done in runs.values()}) > 1:
            raise DifferentResultError(
                f"{workload}, seed {seed}: compiled and interpreted engine simulate differently"
            )
    return runs


def claim_of(workload: str, build: str, runs: Sequence[Timed], seconds: float) -> Claim:
    """A build's CPU minutes of a day, printed too."""
    minutes = [run.day_minutes for run in runs]
    each_us = 1e6 * sum(run.cpu_s for run in runs) / sum(run.steps for run in runs)
    print(
        f"{workload}, {build}: {np.mean(minutes):.1f} CPU minutes a replica-day, "
        f"{runs[0].steps} steps, {each_us:.0f} us a step, {runs[0].peak_mib:.0f} MiB"
    )
    suffix = "" if build == "interpreted" else f"-{build}"
    return Claim(
        id=f"sim-speed/{workload}{suffix}",
        what=f"CPU time of a simulated replica-day ({seconds:.0f} s of it were run), {build}",
        unit="min",
        value=round(float(np.mean(minutes)), 2),
        low=round(min(minutes), 2),
        high=round(max(minutes), 2),
        target="<= 5",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """With and without offline work, on each build there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="a100-80gb-llama-3.1-8b")
    parser.add_argument("--trace", type=Path, default=None, help="CSV.gz of a day, as ServeGen's")
    parser.add_argument(
        "--seconds", type=bounds.seconds, default=DAY_S, help="how much of the day to run"
    )
    parser.add_argument("--seeds", type=bounds.count, default=1)
    parser.add_argument("--where", action="store_true", help="print where the time goes")
    parser.add_argument("--workload", choices=WORKLOADS, help="one run here; prints it as JSON")
    parser.add_argument("--seed", type=int, default=1, help="of the run that --workload names")
    given = parser.parse_args(arguments)
    if given.workload:
        offline = given.workload == "co-located"
        run = timed(given.profile, given.trace, given.seconds, given.seed, offline=offline)
        print(json.dumps(asdict(run)))
        return
    if given.where:
        profiler = cProfile.Profile()
        profiler.runcall(timed, given.profile, given.trace, given.seconds, 1, offline=True)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        return
    seeds = list(range(1, given.seeds + 1))
    claims = [
        claim_of(workload, build, runs, given.seconds)
        for workload in WORKLOADS
        for build, runs in in_turns(workload, given, seeds).items()
    ]
    write_results(
        "sim_speed",
        claims,
        command=shlex.join(["python", "-m", "benchmarks.sim_speed", *(arguments or sys.argv[1:])]),
        seeds=seeds,
        more={"builds": list(builds()), "same_results": True},
    )


if __name__ == "__main__":
    main()
