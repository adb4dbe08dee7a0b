"""The simulator against live vLLM: a profile fitted on one trace, judged on others.

Run: python -m benchmarks.fidelity [--run NAME ...] [--folder FOLDER]. Live runs that have a
file in the folder are not made again. Writes benchmarks/results/fidelity.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.claims import Claim, write_results
from benchmarks.colocation.bench import AgentZygote
from benchmarks.fidelity.live import Lab, run_live
from benchmarks.fidelity.replay import Figures, of_live, simulated
from benchmarks.fidelity.traces import FITTED, JUDGED, TRACES, FidelityTrace
from weir_agent.sample_model import write_sample_model
from weir_cli.loadlab.processes import available_cores, end_in_order_on_sigterm
from weir_engine.sim.recorded import RecordedProfile
from weir_engine.sim.recording import Recording

CACHE = Path(__file__).resolve().parents[2] / ".cache"
TARGETS = {"tokens_s": 1.9, "tpot_s": 4.8, "ttft_s": 10.0}
NAMES = {
    "tokens_s": ("throughput", "tokens/s of both classes"),
    "tpot_s": ("tpot", "mean TPOT"),
    "ttft_s": ("ttft", "mean TTFT"),
    "tbt_p99_s": ("tbt-p99", "P99 TBT"),
    "ttft_p99_s": ("ttft-p99", "P99 TTFT"),
    "steps_s": ("steps", "steps/s"),
}


def recording(lab: Lab, trace: FidelityTrace) -> Recording:
    """The steps of a live run."""
    return Recording.read(lab.step_file(trace).read_text("utf-8").splitlines())


def live_file(lab: Lab, trace: FidelityTrace) -> dict[str, Any]:
    """The figures of a live run."""
    content: dict[str, Any] = json.loads(lab.run_file(trace).read_text("utf-8"))
    return content


def judge(
    lab: Lab, profile: RecordedProfile, trace: FidelityTrace, http_s: float, seeds: list[int]
) -> list[Claim]:
    """What the simulator says of a trace beside what the live engine did."""
    content = live_file(lab, trace)
    live = of_live(content)
    runs = [simulated(profile, trace, http_s=http_s, seed=seed) for seed in seeds]
    claims = [_claim(trace, name, runs, live) for name in NAMES]
    steps = recording(lab, trace).steps
    error = 100 * profile.cost.error(steps)
    judged = trace != FITTED
    if judged:
        claims += _same_speed(profile, trace, http_s, seeds, live, profile.cost.slowness(steps))
    claims.append(
        Claim(
            id=f"fidelity/{trace.name}/step",
            what="mean error of a step's predicted time, live vLLM"
            + ("" if judged else " (the fitted trace itself)"),
            unit="%",
            value=round(error, 2),
            target="<= 5" if judged else None,
        )
    )
    for claim in claims:
        lab.say(f"{claim.id:36} {claim.value:8.2f} {claim.unit}  {claim.what}")
    return claims


def _same_speed(
    profile: RecordedProfile,
    trace: FidelityTrace,
    http_s: float,
    seeds: list[int],
    live: Figures,
    slowness: float,
) -> list[Claim]:
    """The machine's own speed in a run, and what is left when the profile has that speed."""
    same = profile.slower(slowness)
    runs = [simulated(same, trace, http_s=http_s, seed=seed) for seed in seeds]
    left = [_claim(trace, name, runs, live) for name in NAMES]
    return [
        Claim(
            id=f"fidelity/{trace.name}/slowness",
            what="a step of this live run over the same step of the fitted one, median",
            unit="x",
            value=round(slowness, 3),
        ),
        *(
            replace(
                claim,
                id=claim.id.replace(trace.name, f"{trace.name}/same-speed"),
                what=f"{claim.what}, the profile slowed as the machine was",
                target=None,
            )
            for claim in left
        ),
    ]


def _claim(trace: FidelityTrace, name: str, runs: list[Figures], live: Figures) -> Claim:
    """The simulator's deviation, in percent of the live figure; its sign is in ``what``."""
    offs = [run.off(name, live) for run in runs]
    short, words = NAMES[name]
    target = TARGETS.get(name) if trace != FITTED else None
    unit = 1e3 if name.endswith("_s") and name not in {"tokens_s", "steps_s"} else 1.0
    simulated_mean = unit * mean(getattr(run, name) for run in runs)
    return Claim(
        id=f"fidelity/{trace.name}/{short}",
        what=f"{words}: live {unit * getattr(live, name):.4g}, simulated {simulated_mean:.4g}"
        + (" (ms)" if unit > 1 else ""),
        unit="%",
        value=round(abs(mean(offs)), 2),
        low=round(min(map(abs, offs)), 2),
        high=round(max(map(abs, offs)), 2),
        target=None if target is None else f"<= {target:g}",
    )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fidelity",
        description="The simulator against live vLLM: fitted on one trace, judged on others.",
    )
    parser.add_argument("--run", choices=sorted(TRACES), action="append", help="live runs to make")
    parser.add_argument("--no-live", action="store_true", help="judge the runs that there are")
    parser.add_argument("--folder", type=Path, default=CACHE / "fidelity")
    parser.add_argument("--model", type=Path, help="a model folder; default: made locally")
    parser.add_argument("--seeds", type=int, default=20, help="simulations of each trace")
    return parser.parse_args()


async def _live(lab: Lab, traces: list[FidelityTrace]) -> None:
    try:
        for trace in traces:
            if not lab.run_file(trace).exists():
                lab.say(f"live: {trace.name}")
                await run_live(lab, trace)
    finally:
        lab.agents.stop()


def main() -> int:
    """Live runs that are missing, then the comparison of all there are."""
    given = parse()
    end_in_order_on_sigterm()
    given.folder.mkdir(parents=True, exist_ok=True)
    model = given.model or CACHE / "benchmark-model"
    if given.model is None and not (model / "model.safetensors").exists():
        write_sample_model(model)
    lab = Lab(
        model=model,
        folder=given.folder,
        cores=available_cores(),
        agents=AgentZygote(),
        say=lambda line: print(f"{time.strftime('%H:%M:%S')} {line}", flush=True),
    )
    if not given.no_live:
        asyncio.run(_live(lab, [TRACES[name] for name in given.run or TRACES]))
    missing = [name for name, trace in TRACES.items() if not lab.run_file(trace).exists()]
    if missing:
        lab.say(f"still to be run: {', '.join(missing)}")
        return 0
    fitted = live_file(lab, FITTED)
    profile = RecordedProfile.fit(recording(lab, FITTED))
    seeds = list(range(1, given.seeds + 1))
    claims = [
        claim
        for trace in (FITTED, *JUDGED)
        for claim in judge(lab, profile, trace, fitted["http_s"], seeds)
    ]
    live = {name: live_file(lab, trace) for name, trace in TRACES.items()}
    more = {
        "profile": {**profile.plain(), "noise": None, "http_s": fitted["http_s"]},
        # A busy engine that had less than a core of its own was disturbed by other work.
        "core_share_of_live_runs": {
            name: round(content["measurement"]["busy_share"], 2) for name, content in live.items()
        },
        "load_average_of_live_runs": {
            name: round(content["load_average_before"], 2) for name, content in live.items()
        },
    }
    command = shlex.join(["python", "-m", "benchmarks.fidelity", *sys.argv[1:]])
    write_results("fidelity", claims, command=command, seeds=seeds, more=more)
    return 0


if __name__ == "__main__":
    sys.exit(main())
