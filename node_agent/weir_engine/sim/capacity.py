"""How many replicas a trace needs, and what batch work they do besides: Echo's two questions.

Simulations only; where traces come from and how answers are shown is the caller's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weir_engine.config import Slo
from weir_engine.errors import ConfigError
from weir_engine.sim.records import SimResult
from weir_engine.sim.report import Latencies, attained

SimulateFleet = Callable[[int], Sequence[SimResult]]
"""Runs the peak on so many replicas, online alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One number of replicas at the peak: the worst of measured over threshold, and who waits.

    ``ratio`` is None where nobody was answered, so that nothing is measured.
    """

    replicas: int
    ratio: float | None
    unanswered: int

    @property
    def holds(self) -> bool:
        """Every objective held and every request was answered."""
        return self.ratio is not None and self.ratio <= 1.0 and self.unanswered == 0


def fewest_replicas(
    simulate: SimulateFleet, slos: Sequence[Slo], *, arrivals: int, most: int
) -> tuple[Trial, ...]:
    """Trials with 1, 2, ... replicas up to the first that holds, or to ``most``.

    ``arrivals`` is how many online requests the peak has: one that never got a token counts, be it
    that it waits or that it was refused.

    Source: Echo §5.4, step 1 (smallest to largest over a short window of the peak).

    Raises:
        ConfigError: no objective, or ``most`` below 1.
    """
    if not slos or most < 1:
        raise ConfigError(
            f"{len(slos)} objectives, at most {most} replicas: give one or more of each"
        )
    trials: list[Trial] = []
    for replicas in range(1, most + 1):
        ended = [record for result in simulate(replicas) for record in result.online]
        answered = [record for record in ended if record.tokens_s]  # the others were refused
        ratio = attained(Latencies.of(answered), slos) if answered else None
        trials.append(Trial(replicas=replicas, ratio=ratio, unanswered=arrivals - len(answered)))
        if trials[-1].holds:
            break
    return tuple(trials)


def offline_tokens_a_day(results: Sequence[SimResult], *, span_s: float) -> float:
    """Offline tokens served in the first ``span_s`` of a simulation, scaled to a day.

    Steps after them, when no online request arrives any more, say nothing of a day.

    Source: Echo §5.4, step 2.
    """
    served = sum(
        step.offline_served_tokens
        for result in results
        for step in result.steps
        if step.ended_s <= span_s
    )
    return served * 86_400.0 / span_s
