"""The simulator against live vLLM: a profile fitted on one trace, judged on others.

Run: python -m benchmarks.fidelity [--run NAME ...] [--repeats N] [--folder FOLDER]. Live runs that
have a file in the folder are not made again. Writes benchmarks/results/fidelity.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, Self

from benchmarks import bounds
from benchmarks.awake import awake
from benchmarks.claims import Claim, write_results
from benchmarks.colocation.bench import AgentZygote
from benchmarks.fidelity.live import Lab, run_live
from benchmarks.fidelity.replay import Figures, mean_figures, of_live, simulated
from benchmarks.fidelity.traces import FITTED, JUDGED, TRACES, FidelityTrace
from weir_agent.sample_model import write_sample_model
from weir_cli.loadlab.processes import available_cores, end_in_order_on_sigterm
from weir_engine.sim.recorded import RecordedProfile
from weir_engine.sim.recorded_cost import RecordedCost
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Live:
    """The live runs of a trace, one or more: what they measured, and their steps."""

    contents: tuple[dict[str, Any], ...]
    recordings: tuple[Recording, ...]

    @classmethod
    def read(cls, lab: Lab, trace: FidelityTrace, repeats: int) -> Self:
        """The first ``repeats`` runs of a trace from their files."""
        numbers = range(1, repeats + 1)
        files = [lab.run_file(trace, repeat).read_text("utf-8") for repeat in numbers]
        steps = [lab.step_file(trace, repeat).read_text("utf-8") for repeat in numbers]
        return cls(
            contents=tuple(json.loads(text) for text in files),
            recordings=tuple(Recording.read(text.splitlines()) for text in steps),
        )

    @property
    def figures(self) -> list[Figures]:
        """Of each run."""
        return [of_live(content) for content in self.contents]

    def mean_of(self, field: Callable[[Recording], float]) -> float:
        """Something of each run's steps, their mean."""
        return mean(field(recording) for recording in self.recordings)


def fitted_profile(live: Live) -> tuple[RecordedProfile, float]:
    """The profile of all steps of the fitted trace's runs, and HTTP's seconds beside them."""
    first = live.recordings[0]
    steps = tuple(step for recording in live.recordings for step in recording.steps)
    http_s = mean(content["http_s"] for content in live.contents)
    return RecordedProfile.fit(replace(first, steps=steps)), http_s


def judge(
    trace: FidelityTrace, live: Live, profile: RecordedProfile, http_s: float, seeds: list[int]
) -> list[Claim]:
    """What the simulator says of a trace beside what the live engine did."""
    runs = [simulated(profile, trace, http_s=http_s, seed=seed) for seed in seeds]
    claims = [_claim(trace, name, runs, live) for name in NAMES]
    if len(live.figures) > 1:
        claims += [_repeats(trace, name, live.figures) for name in NAMES]
    error = 100 * live.mean_of(lambda recording: profile.cost.error(recording.steps))
    own = 100 * live.mean_of(lambda r: RecordedCost.fit(r.steps).error(r.steps))
    judged = trace != FITTED
    if judged:
        claims += _same_speed(trace, live, profile, http_s, seeds)
    claims += [
        Claim(
            id=f"fidelity/{trace.name}/step",
            what="mean error of a step's predicted time, live vLLM"
            + ("" if judged else " (the fitted trace itself)"),
            unit="%",
            value=round(error, 2),
            target="<= 5" if judged else None,
        ),
        Claim(
            id=f"fidelity/{trace.name}/own-step",
            what="the same of a profile fitted to the run itself: what no fit takes away",
            unit="%",
            value=round(own, 2),
        ),
    ]
    return claims


def _same_speed(
    trace: FidelityTrace, live: Live, profile: RecordedProfile, http_s: float, seeds: list[int]
) -> list[Claim]:
    """The machine's own speed in the runs, and what is left when the profile has that speed."""
    slowness = live.mean_of(lambda recording: profile.cost.slowness(recording.steps))
    same = profile.slower(slowness)
    runs = [simulated(same, trace, http_s=http_s, seed=seed) for seed in seeds]
    left = [_claim(trace, name, runs, live) for name in NAMES]
    return [
        Claim(
            id=f"fidelity/{trace.name}/slowness",
            what="a step of the live runs over the same step of the fitted ones, median",
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


def _claim(trace: FidelityTrace, name: str, runs: list[Figures], live: Live) -> Claim:
    """The deviation of the simulations' mean from the live runs', in percent of that.

    ``low`` and ``high`` are those of single simulations, negative on the other side of the live
    figure than the mean; the mean's own sign is in ``what``.
    """
    real = mean_figures(live.figures)
    offs = [run.off(name, real) for run in runs]
    side = -1 if mean(offs) < 0 else 1
    short, words = NAMES[name]
    target = TARGETS.get(name) if trace != FITTED else None
    simulated_mean = _shown(name, getattr(mean_figures(runs), name))
    return Claim(
        id=f"fidelity/{trace.name}/{short}",
        what=f"{words}: live {_shown(name, getattr(real, name))}, simulated {simulated_mean}"
        + (" (ms)" if _in_ms(name) else ""),
        unit="%",
        value=round(abs(mean(offs)), 2),
        low=round(min(side * off for off in offs), 2),
        high=round(max(side * off for off in offs), 2),
        target=None if target is None else f"<= {target:g}",
    )


def _repeats(trace: FidelityTrace, name: str, runs: list[Figures]) -> Claim:
    """How far equal live runs are from each other, in percent of their mean."""
    values = [getattr(run, name) for run in runs]
    short, words = NAMES[name]
    return Claim(
        id=f"fidelity/{trace.name}/repeats/{short}",
        what=f"{words}: equal live runs, the largest difference of two: "
        + ", ".join(_shown(name, value) for value in values)
        + (" (ms)" if _in_ms(name) else ""),
        unit="%",
        value=round(100 * (max(values) - min(values)) / mean(values), 2),
    )


def _in_ms(name: str) -> bool:
    return name not in {"tokens_s", "steps_s"}


def _shown(name: str, value: float) -> str:
    return f"{1e3 * value if _in_ms(name) else value:.4g}"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fidelity",
        description="The simulator against live vLLM: fitted on one trace, judged on others.",
    )
    parser.add_argument("--run", choices=sorted(TRACES), action="append", help="live runs to make")
    parser.add_argument("--repeats", type=bounds.count, default=3, help="live runs of each trace")
    parser.add_argument("--no-live", action="store_true", help="judge the runs that there are")
    parser.add_argument("--keep-awake", action="store_true", help="no core halts while idle")
    parser.add_argument("--folder", type=Path, default=CACHE / "fidelity")
    parser.add_argument("--model", type=Path, help="a model folder; default: made locally")
    parser.add_argument("--seeds", type=bounds.count, default=20, help="simulations of each trace")
    return parser.parse_args()


async def _live(lab: Lab, traces: list[FidelityTrace], repeats: int) -> None:
    """All traces once, then all again: a repeat is as far in time as another trace."""
    try:
        for repeat in range(1, repeats + 1):
            for trace in traces:
                if not lab.run_file(trace, repeat).exists():
                    lab.say(f"live: {trace.name}, run {repeat}")
                    await run_live(lab, trace, repeat)
    finally:
        lab.agents.stop()


def _missing(lab: Lab, repeats: int) -> list[str]:
    return [
        f"{name} {repeat}"
        for repeat in range(1, repeats + 1)
        for name, trace in TRACES.items()
        if not lab.run_file(trace, repeat).exists()
    ]


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
        folder=given.folder.resolve(),  # the engine may have another working folder
        cores=available_cores(),
        agents=AgentZygote(),
        say=lambda line: print(f"{time.strftime('%H:%M:%S')} {line}", flush=True),
    )
    if not given.no_live:
        with awake(lab.cores.both if given.keep_awake else ()):
            asyncio.run(_live(lab, [TRACES[name] for name in given.run or TRACES], given.repeats))
    missing = _missing(lab, given.repeats)
    if missing:
        lab.say(f"still to be run: {', '.join(missing)}")
        return 0
    runs = {name: Live.read(lab, trace, given.repeats) for name, trace in TRACES.items()}
    profile, http_s = fitted_profile(runs[FITTED.name])
    seeds = list(range(1, given.seeds + 1))
    claims = []
    for trace in (FITTED, *JUDGED):
        found = judge(trace, runs[trace.name], profile, http_s, seeds)
        for claim in found:
            lab.say(f"{claim.id:44} {claim.value:8.2f} {claim.unit}  {claim.what}")
        claims += found
    more = {
        "profile": {**profile.plain(), "noise": None, "ranks": None, "http_s": http_s},
        # A busy engine that had less than a core of its own was disturbed by other work.
        "core_share_of_live_runs": {
            name: [round(content["measurement"]["busy_share"], 2) for content in live.contents]
            for name, live in runs.items()
        },
        "load_average_of_live_runs": {
            name: [round(content["load_average_before"], 2) for content in live.contents]
            for name, live in runs.items()
        },
    }
    command = shlex.join(["python", "-m", "benchmarks.fidelity", *sys.argv[1:]])
    write_results("fidelity", claims, command=command, seeds=seeds, more=more)
    return 0


if __name__ == "__main__":
    sys.exit(main())
