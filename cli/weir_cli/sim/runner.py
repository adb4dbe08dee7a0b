"""Simulates a fleet for `weir sim` and `weir plan`, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from weir_cli.console import err
from weir_cli.errors import CliError, ExitStatus
from weir_cli.sim.inputs import Specs
from weir_engine.config import Metric, Slo
from weir_engine.errors import ConfigError
from weir_engine.presets import SEATS
from weir_engine.sim.fleet import Fleet
from weir_engine.sim.loop import Feeder, Simulation
from weir_engine.sim.preset_run import preset_simulation
from weir_engine.sim.records import SimResult
from weir_engine.sim.replica import Replica

_SLICES = 200
_DRAIN_S = 60.0  # after the last arrival, so that it can be answered
_DRAIN_OF_TTFT = 1.2  # of the largest threshold: who still waits then is late
_MOST_DRAIN_S = 3_600.0  # an objective of days is none, and batch work runs for as long
_BUDGETED = "hygen"  # the preset whose step budget is profiled, and static
_LONGEST_ANSWER_S = 36_000.0  # ends a run whose requests make no progress


def drain_s(slos: Iterable[Slo]) -> float:
    """How long a run goes on after its last arrival: each may wait as long as it is promised."""
    allowed_s = [slo.threshold_s for slo in slos if slo.metric is Metric.TTFT]
    return max(_DRAIN_S, min(_MOST_DRAIN_S, _DRAIN_OF_TTFT * max(allowed_s, default=0.0)))


@dataclass(frozen=True, kw_only=True)
class PresetRunner:
    """Fleets whose every replica runs a preset; ``budget_s`` is for presets with a static one.

    ``whole_answers``: a run goes on to the end of every online request, unless one of them still
    waits for its first token.
    """

    preset: str
    budget_s: float | None
    whole_answers: bool = False

    @classmethod
    def of(
        cls, preset: str, step_budget_ms: float | None, *, whole_answers: bool = False
    ) -> PresetRunner:
        """What the options ask for.

        Raises:
            CliError: a step budget for a preset that has none, which would count for nothing.
        """
        if step_budget_ms is not None and SEATS[preset].budget is not SEATS[_BUDGETED].budget:
            raise CliError(
                f"--step-budget-ms: preset {preset} has no static step budget",
                remedy=f"leave it out, or give --preset {_BUDGETED}",
                status=ExitStatus.USAGE,
            )
        budget_s = None if step_budget_ms is None else step_budget_ms / 1e3
        return cls(preset=preset, budget_s=budget_s, whole_answers=whole_answers)

    def run(
        self,
        replica: Replica,
        online: Specs,
        offline: Specs,
        *,
        replicas: int,
        seconds: float,
        title: str = "simulating",
    ) -> tuple[SimResult, ...]:
        """A fleet, up to ``seconds`` of arrivals and ``drain_s`` more.

        Raises:
            CliError: the preset cannot run as given.
        """

        def make(number: int, feeder: Feeder) -> Simulation:
            return preset_simulation(
                replace(replica, seed=replica.seed + number),
                self.preset,
                offline=feeder,
                static_budget_s=self.budget_s,
            )

        until_s = seconds + drain_s(replica.slos)
        try:
            fleet = Fleet(
                make,
                replicas=replicas,
                online=online,
                offline=offline,
                window_size=replica.window_size,
            )
            with _bar(title) as done:
                for i in range(1, _SLICES + 1):
                    fleet.advance(until_s * i / _SLICES)
                    done(i)
                if self.whole_answers:
                    _end_answers(fleet, until_s)
        except ConfigError as error:
            raise CliError(
                str(error),
                remedy="give what the preset needs (docs/presets.md): --slo, or, for a static "
                "budget, --step-budget-ms",
                status=ExitStatus.USAGE,
            ) from error
        return fleet.results()


def _end_answers(fleet: Fleet, now_s: float) -> None:
    """Simulates on while all that a fleet has to do online is to end answers."""
    until_s = now_s + _LONGEST_ANSWER_S
    while (left := fleet.unfinished()) and now_s < until_s and all(r.tokens_s for r in left):
        now_s += _DRAIN_S
        fleet.advance(now_s)


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int], None]]:
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
    with progress:
        task = progress.add_task(title, total=_SLICES)
        yield lambda done: progress.update(task, completed=done)
