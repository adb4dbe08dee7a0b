"""`weir sim`: any preset on any trace and hardware profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir_cli.console import out
from weir_cli.sim.inputs import (
    OFFLINE_HELP,
    TRACE_HELP,
    Load,
    read_offline,
    read_trace,
)
from weir_cli.sim.machine import SLO_HELP, EngineLimits, make_replica, parse_slos, read_machine
from weir_cli.sim.options import check_choice
from weir_cli.sim.outcome import check_output, outcome, show, write_chrome, write_json
from weir_cli.sim.plots import check_plots, write_plots
from weir_cli.sim.runner import PresetRunner, drain_s
from weir_engine.presets import PRESETS
from weir_engine.sim.profiles import PROFILES

Profile = Annotated[
    str,
    typer.Option(help=f"Hardware: a file made by `weir profile`, or one of {', '.join(PROFILES)}."),
]
Preset = Annotated[str, typer.Option(help=f"Scheduler: one of {', '.join(PRESETS)}.")]
Trace = Annotated[str | None, typer.Option(help=TRACE_HELP)]
Offline = Annotated[str, typer.Option(help=OFFLINE_HELP)]
Slos = Annotated[list[str], typer.Option("--slo", help=SLO_HELP)]
Backend = Annotated[str, typer.Option(help="sequential or overlapped.")]
BatchedTokens = Annotated[int, typer.Option(min=1, help="Most tokens of a step.")]
Seqs = Annotated[int, typer.Option(min=1, max=1_000_000, help="Most requests that run at once.")]
ModelLength = Annotated[int, typer.Option(min=2, help="Longest prompt and answer in tokens.")]
OfflineKv = Annotated[float, typer.Option(min=0, max=1, help="KV share offline work may hold.")]
BudgetMs = Annotated[
    float | None, typer.Option(min=0.1, help="Step budget of presets with a static one.")
]
Seed = Annotated[int, typer.Option(min=0, help="Draws the noise and the offline set.")]
DEFAULT_PROFILE = "rtx-pro-6000-llama-3.1-8b"


def sim(  # noqa: PLR0913 - one option each
    profile: Profile = DEFAULT_PROFILE,
    preset: Preset = "weir",
    trace: Trace = None,
    offline: Offline = "synthetic",
    slo: Slos = [],  # noqa: B006 - typer copies it
    replicas: Annotated[int, typer.Option(min=1, max=10_000, help="Replicas of the fleet.")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="Simulated seconds of arrivals.")] = 300.0,
    start: Annotated[float, typer.Option(min=0, help="Where in the trace to begin.")] = 0.0,
    time_scale: Annotated[float, typer.Option(min=1e-6, help="Multiplies arrival times.")] = 1.0,
    keep: Annotated[float, typer.Option(min=1e-6, max=1, help="Share of requests kept.")] = 1.0,
    backend: Backend = "sequential",
    max_batched_tokens: BatchedTokens = 2048,
    max_seqs: Seqs = 256,
    max_model_len: ModelLength = 8192,
    offline_kv: OfflineKv = 0.9,
    step_budget_ms: BudgetMs = None,
    seed: Seed = 0,
    json: Annotated[Path | None, typer.Option(help="File for the figures.")] = None,
    chrome: Annotated[Path | None, typer.Option(help="File for a Chrome trace.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for plots (needs matplotlib).")] = None,
) -> None:
    """Simulate a scheduler on a trace and a hardware profile.

    The scheduler is the one that runs in production; the time of a step comes from measured
    kernels.
    """
    check_choice("--preset", preset, PRESETS)
    check_output("--json", json)
    check_output("--chrome", chrome)
    check_plots(plots)
    limits = EngineLimits(
        max_batched_tokens=max_batched_tokens,
        max_seqs=max_seqs,
        max_model_len_tokens=max_model_len,
    )
    machine = read_machine(profile, backend, limits, offline_kv=offline_kv)
    longest = machine.shape.max_model_len_tokens
    load = Load(seconds=seconds, start_s=start, time_scale=time_scale, keep=keep, seed=seed)
    online = read_trace(trace, load, longest_tokens=longest)
    batch = read_offline(offline, seed=seed, longest_tokens=longest)
    slos = parse_slos(slo)
    replica = make_replica(machine, slos, offline=bool(batch), seed=seed)
    runner = PresetRunner.of(preset, step_budget_ms)
    # Beyond its last arrival a trace says nothing of what there is to spare.
    lasting_s = min(seconds, online[-1].arrival_s)
    results = runner.run(replica, online, batch, replicas=replicas, seconds=lasting_s)
    found = outcome(results, slos, arrived=len(online), seconds=lasting_s + drain_s(slos))
    try:  # first: printing ends with its reader, as in `weir sim --json F | head -1`
        if json is not None:
            write_json(found, json)
        if chrome is not None:
            write_chrome(results, chrome)
        drawn = () if plots is None else write_plots(results, slos, plots)
    finally:  # a file that cannot be written is no reason to lose the figures
        show(found)
    for path in drawn:
        out.print(f"wrote {path}", markup=False)
