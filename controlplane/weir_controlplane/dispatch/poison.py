"""Which line kills engines: pure (§8.5).

Only lines that were in an engine when it died become suspects. A suspect runs alone; after two
deaths as the only offline line it fails with its own error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from weir_controlplane.dispatch.bounds import (
    BATCH_DEATHS_TO_FAIL,
    MAX_PAUSE_S,
    PAUSE_S,
    SOLO_DEATHS_TO_FAIL,
)

State = Literal["suspect", "cleared", "failed"]
Line = tuple[str, int]  # batch id, line
ERROR_CODE = "engine_crash"


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspicion:
    """What is known of one line."""

    state: State = "suspect"
    deaths: int = 0
    solo_deaths: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a death changes. ``pause``: it had no suspects, so its pod gets nothing for a while.

    ``batch_deaths`` holds the batches whose count changes.
    """

    lines: Mapping[Line, Suspicion] = field(default_factory=dict)
    batch_deaths: Mapping[str, int] = field(default_factory=dict)
    pause: bool = False


def after_death(
    resident: Sequence[Line],
    *,
    known: Mapping[Line, Suspicion],
    batch_deaths: Mapping[str, int],
    named: int | None = None,
) -> Verdict:
    """What a death with these resident lines changes.

    ``known`` holds every line known of the batches concerned, ``batch_deaths`` their counts. A
    death counts against a batch when all resident lines are of it: of a mixed death nobody can
    say which batch it was, and from then on its suspects run alone. Deaths of which every
    suspect has answered since are not its doing: the count starts anew. ``named``: how many lines
    there were in the engine, where others than these have answered since.
    """
    if not resident:
        return Verdict(pause=True)
    alone = max(named or 0, len(set(resident))) == 1
    lines: dict[Line, Suspicion] = {}
    for line in dict.fromkeys(resident):
        before = known.get(line, Suspicion())
        if before.state == "failed":
            continue
        solo = before.solo_deaths + alone
        lines[line] = Suspicion(
            state="failed" if solo >= SOLO_DEATHS_TO_FAIL else "suspect",
            deaths=before.deaths + 1,
            solo_deaths=solo,
        )
    batches = {batch for batch, _ in resident}
    counts = {}
    if len(batches) == 1:
        (batch,) = batches
        unexplained = batch_deaths.get(batch, 0) if _is_suspected(batch, known) else 0
        counts = {batch: unexplained + 1}
        if counts[batch] >= BATCH_DEATHS_TO_FAIL:
            lines |= _others_failed(batch, {**known, **lines})
    return Verdict(lines=lines, batch_deaths=counts)


def _is_suspected(batch: str, known: Mapping[Line, Suspicion]) -> bool:
    return any(line[0] == batch and item.state != "cleared" for line, item in known.items())


def _others_failed(batch: str, known: Mapping[Line, Suspicion]) -> dict[Line, Suspicion]:
    return {
        line: replace(item, state="failed")
        for line, item in known.items()
        if line[0] == batch and item.state == "suspect"
    }


def pause_s(pauses: int) -> float:
    """How long a pod gets nothing after its ``pauses``-th death in a row without suspects.

    In a row: it has committed no work that it was given between them.
    """
    return float(min(MAX_PAUSE_S, PAUSE_S * 2.0 ** min(max(pauses - 1, 0), 10)))
