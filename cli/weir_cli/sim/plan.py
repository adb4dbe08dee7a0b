"""`weir plan`: how many replicas a trace needs at its peak, and the batch work they do besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from json import dumps
from math import ceil
from pathlib import Path
from typing import Annotated

import typer

from weir_cli.console import out
from weir_cli.errors import CliError, ExitStatus
from weir_cli.sim.command import (
    DEFAULT_PROFILE,
    Backend,
    BatchedTokens,
    BudgetMs,
    ModelLength,
    Offline,
    OfflineKv,
    Preset,
    Profile,
    Seed,
    Seqs,
    Slos,
    Trace,
)
from weir_cli.sim.inputs import Load, Specs, read_offline, read_trace
from weir_cli.sim.machine import EngineLimits, make_replica, parse_slos, read_machine
from weir_cli.sim.options import check_choice, named
from weir_cli.sim.outcome import Outcome, check_output, outcome, write_text
from weir_cli.sim.runner import PresetRunner
from weir_engine.presets import PRESETS
from weir_engine.sim.capacity import Trial, fewest_replicas, offline_tokens_a_day
from weir_engine.sim.records import SimResult
from weir_engine.sim.traces import Cut, peak_start_s


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was found, as ``--json`` writes it; ``with_offline`` is the run with batch work.

    That is of the first ``sample_s`` of a trace of ``trace_s`` seconds, whose online tokens a
    second are ``sample_load`` times those of the whole trace.
    """

    replicas: int
    sample_s: float
    trace_s: float
    sample_load: float
    offline_tokens_a_day: float
    trials: tuple[Trial, ...]
    with_offline: Outcome


def plan(  # noqa: PLR0913 - one option each
    slo: Slos,
    profile: Profile = DEFAULT_PROFILE,
    preset: Preset = "weir",
    trace: Trace = None,
    offline: Offline = "synthetic",
    rate: Annotated[
        float, typer.Option(min=1e-6, max=1e6, help="Multiplies the trace's request rate.")
    ] = 1.0,
    peak: Annotated[float, typer.Option(min=10, help="Seconds of the peak to hold.")] = 300.0,
    sample: Annotated[
        float, typer.Option(min=60, help="First seconds of the trace, that stand for a day.")
    ] = 1800.0,
    most: Annotated[int, typer.Option(min=1, max=10_000, help="Most replicas to try.")] = 32,
    backend: Backend = "sequential",
    max_batched_tokens: BatchedTokens = 2048,
    max_seqs: Seqs = 256,
    max_model_len: ModelLength = 8192,
    offline_kv: OfflineKv = 0.9,
    step_budget_ms: BudgetMs = None,
    seed: Seed = 0,
    json: Annotated[Path | None, typer.Option(help="File for the answer.")] = None,
) -> None:
    """Find the fewest replicas that hold the SLOs at the trace's peak.

    Then simulate them with batch work and scale what it did to a day. `--sample 86400` with a
    trace of a day leaves nothing to scale.
    """
    check_choice("--preset", preset, PRESETS)
    check_output("--json", json)
    slos = parse_slos(slo)
    limits = EngineLimits(
        max_batched_tokens=max_batched_tokens,
        max_seqs=max_seqs,
        max_model_len_tokens=max_model_len,
    )
    machine = read_machine(profile, backend, limits, offline_kv=offline_kv)
    longest = machine.shape.max_model_len_tokens
    load = Load(seconds=None, time_scale=1 / rate, seed=seed)
    online = read_trace(trace, load, longest_tokens=longest)
    batch = read_offline(offline, seed=seed, longest_tokens=longest)
    alone = make_replica(machine, slos, offline=False, seed=seed)
    patient = PresetRunner.of(preset, step_budget_ms, whole_answers=True)
    busiest = Cut(start_s=peak_start_s(online, window_s=peak), seconds=peak).of(online)

    def at_peak(replicas: int) -> Sequence[SimResult]:
        title = f"peak on {replicas}"
        return patient.run(alone, busiest, (), replicas=replicas, seconds=peak, title=title)

    with named("--slo"):
        trials = fewest_replicas(at_peak, slos, arrivals=len(busiest), most=most)
    replicas = _found(trials)
    seconds = min(sample, max(online[-1].arrival_s, 60.0))
    # Requests that all arrive at one time have no span: the minute that is run stands for it.
    span_s = min(sample, online[-1].arrival_s or seconds)
    # A cut ends before its last second: what arrives in that is part of a trace that is run whole.
    day = online if online[-1].arrival_s <= sample else Cut(seconds=seconds).of(online)
    shared = make_replica(machine, slos, offline=True, seed=seed)
    title = "with batch work"
    results = patient.run(shared, day, batch, replicas=replicas, seconds=seconds, title=title)
    trace_s = max(online[-1].arrival_s, seconds)
    answer = Answer(
        replicas=replicas,
        sample_s=seconds,
        trace_s=trace_s,
        sample_load=(_tokens(day) / seconds) / (_tokens(online) / trace_s),
        offline_tokens_a_day=offline_tokens_a_day(results, span_s=span_s),
        trials=tuple(trials),
        with_offline=outcome(
            results, slos, arrived=len(day), seconds=max(result.ended_s for result in results)
        ),
    )
    try:  # first: printing ends with its reader, as in `weir plan --json F | head -1`
        if json is not None:
            write_text(json, dumps(asdict(answer), indent=1, allow_nan=False) + "\n")
    finally:  # a file that cannot be written is no reason to lose the answer
        _say(answer, profile, offered=len(batch))


def _say(answer: Answer, profile: str, *, offered: int) -> None:
    _show(answer.trials)
    found = answer.with_offline
    lacking = found.online_arrived - found.online_answered
    out.print(
        f"{answer.replicas} replica(s) of {profile}; besides, "
        f"{answer.offline_tokens_a_day / 1e6:.1f} M batch tokens a day "
        f"({answer.offline_tokens_a_day / 86_400:.0f}/s), SLOs "
        f"{'held' if found.all_held else 'MISSED'} with them"
        + (f", {lacking} requests unanswered" if lacking else ""),
        markup=False,
    )
    if answer.sample_s < answer.trace_s:
        out.print(
            f"batch tokens, and SLOs with them, are of the first {answer.sample_s:.0f} s of "
            f"{answer.trace_s:.0f}, which have {answer.sample_load:.2f} times the trace's mean "
            f"load; --sample {ceil(answer.trace_s)} runs all of it"
        )
    if found.offline_finished >= offered > 0:
        out.print("the offline set ran out: more would have fitted; give a larger one")


def _tokens(specs: Specs) -> int:
    return sum(spec.prompt_tokens + spec.output_tokens for spec in specs)


def _show(trials: Sequence[Trial]) -> None:
    for trial in trials:
        word = "holds" if trial.holds else "does not hold"
        late = f", {trial.unanswered} unanswered" if trial.unanswered else ""
        worst = "nobody" if trial.ratio is None else f"worst {trial.ratio:.2f} of its SLO"
        out.print(f"{trial.replicas} replica(s): {worst}{late}: {word}")


def _found(trials: Sequence[Trial]) -> int:
    """The number of replicas that holds.

    Raises:
        CliError: none of the trials does.
    """
    last = trials[-1]
    if not last.holds:
        _show(trials)
        raise CliError(
            f"{last.replicas} replicas do not hold the SLOs at the peak",
            remedy="raise --most, or loosen --slo: some thresholds no number of replicas meets",
            status=ExitStatus.FAILED,
        )
    return last.replicas
