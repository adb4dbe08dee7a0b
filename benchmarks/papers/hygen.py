"""HyGen in the simulator: SLO cells, HyGen against HyGen*, Sarathi++, AIMD and Weir.

Set-up of the paper: Llama-2-7B on an A100 40 GB, Azure conversations sampled to a rate, arXiv
lengths all at once. Budget and rate are bisected on a stretch of the trace that is also judged, as
in the paper; what the budget does on the stretch after it is reported beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from benchmarks.claims import Claim
from benchmarks.papers.ablation import NOTHING_KEPT, interpreted, runs_apart
from benchmarks.papers.hygen_judge import (
    ARMS,
    CELLS,
    TOLERANCES,
    Cell,
    Verdict,
    judge_next,
    simulate,
)
from benchmarks.papers.hygen_run import Setup
from benchmarks.papers.paper import (
    Options,
    PaperResult,
    Table,
    chosen,
    joined,
    kept,
    parallel,
    spread,
)

Rows = list[list[dict[str, Verdict]]]  # seed, cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """One profile at one online rate, and the cells it is judged in."""

    profile: str
    rate_s: float
    cells: tuple[Cell, ...]
    seeds: int = 3
    arms: tuple[str, ...] = ARMS

    @property
    def name(self) -> str:
        """Profile and rate."""
        return f"{self.profile}@{self.rate_s:g}"

    @property
    def is_main(self) -> bool:
        """Whether the paper's headlines are judged on it."""
        return self is STUDIES[0]

    @property
    def claims_at(self) -> str:
        """What the ids of its claims begin with."""
        return "hygen/" if self.is_main else f"hygen/{self.name.replace('@', '/')}/"

    @property
    def where(self) -> str:
        """What its claims say of profile and rate; the main study's say nothing."""
        return "" if self.is_main else f" ({self.name}/s)"


# Two stretches with their ramps for each of three seeds fill the hour that the trace has.
_WINDOW_S = 560.0
_TIGHT = tuple(cell for cell in CELLS if cell[2] == TOLERANCES[0])
STUDIES = (
    Study(profile="a100-40gb-llama-2-7b", rate_s=1.0, cells=CELLS, arms=(*ARMS, NOTHING_KEPT)),
    Study(profile="rtx-pro-6000-llama-3.1-8b", rate_s=4.0, cells=_TIGHT, seeds=2),
    Study(profile="a100-40gb-llama-2-7b", rate_s=0.5, cells=_TIGHT, arms=(*ARMS, NOTHING_KEPT)),
)


def run(options: Options) -> PaperResult:
    """The paper's profile at its main rate, RTX PRO 6000 beside it, and a sweep of the rate."""
    return joined(_run(study, options) for study in chosen(options, STUDIES))


def _run(study: Study, options: Options) -> PaperResult:
    made = [_seed(study, seed, options) for seed in options.seeds[: study.seeds]]
    rows = [seed for seed in made if seed[0]]
    return PaperResult(
        claims=tuple(claims_of(study, rows)),
        notes=tuple(notes_of(study, rows)),
        tables=(table_of(study, rows),) if rows else (),
    )


def run_arm(cell: tuple[Options, Study, Setup, str]) -> list[dict[str, Any]] | None:
    """One arm for one seed, as JSON has it; None: not to be run, not kept."""
    options, study, setup, arm = cell

    def make() -> list[dict[str, Any]]:
        if arm == "hygen-next":
            found = [Verdict(**own) for own in run_arm((options, study, setup, "hygen")) or ()]
            return [asdict(own) for own in judge_next(setup, study.cells, found)]
        places = [CELLS.index(own) for own in study.cells]
        if runs_apart(arm):
            judged = interpreted(simulate.__module__, setup, arm, *places)
        else:
            judged = asdict(simulate(setup, arm, *places))
        return list(judged["verdicts"])

    part = f"{study.name}-{setup.seed}-{arm.replace('*', '-rate')}"
    verdicts: list[dict[str, Any]] | None = kept(options, "hygen", part, make)
    return verdicts


def _seed(study: Study, seed: int, options: Options) -> list[dict[str, Verdict]]:
    setup = Setup(
        profile=study.profile,
        data=options.data,
        rate_s=study.rate_s,
        window_s=60.0 if options.quick else _WINDOW_S,
        seed=seed,
    )
    arms = [arm for arm in study.arms if arm != "hygen-next"]
    columns = parallel(options, run_arm, [(options, study, setup, arm) for arm in arms])
    columns.append(run_arm((options, study, setup, "hygen-next")))  # it needs what hygen found
    named = [
        (arm, column) for arm, column in zip([*arms, "hygen-next"], columns, strict=True) if column
    ]
    return [{arm: Verdict(**column[i]) for arm, column in named} for i in range(len(study.cells))]


def _gain(row: dict[str, Verdict], of: str, over: str, what: str) -> float | None:
    """None where an arm has no figure, or ``of`` misses: what it serves then is no gain."""
    if of not in row or over not in row or row[of].ratio > 1:
        return None
    base = getattr(row[over], what)
    return float(getattr(row[of], what) / base) if base > 0 else None


def _held(rows: Rows, arm: str) -> list[float]:
    """By seed: the share of the cells that the arm holds."""
    return [fmean(row[arm].ratio <= 1 for row in seed) for seed in rows if arm in seed[0]]


def _gains(rows: Rows, of: str, over: str, what: str) -> list[list[float]]:
    """By seed: the gain in each cell where both have a figure and ``of`` holds."""
    return [
        [gain for row in seed if (gain := _gain(row, of, over, what)) is not None] for seed in rows
    ]


def _each(seeds: list[list[float]], function: Callable[[list[float]], float]) -> list[float]:
    return [function(gains) for gains in seeds if gains]


def claims_of(study: Study, rows: Rows) -> list[Claim]:
    """The headlines of one study; only the main one has the paper's targets."""
    claims = [*_hygen_claims(study, rows), *_weir_claims(study, rows)]
    if NOTHING_KEPT in study.arms:
        claims += _weir_claims(study, rows, NOTHING_KEPT)
    return claims


def _hygen_claims(study: Study, rows: Rows) -> list[Claim]:
    paper, at, where = study.is_main, study.claims_at, study.where
    offline = _gains(rows, "hygen", "hygen*", "offline_s")
    whole = _gains(rows, "hygen", "hygen*", "whole_s")
    return [
        spread(
            f"{at}offline-gain-largest",
            f"offline tokens/s of HyGen over HyGen*, largest cell{where}",
            "times",
            _each(offline, max),
            ">= 5.84" if paper else None,
        ),
        spread(
            f"{at}offline-gain-median",
            f"the same, median cell{where}",
            "times",
            _each(offline, median),
        ),
        spread(
            f"{at}offline-gain-smallest",
            f"the same, smallest cell{where}",
            "times",
            _each(offline, min),
        ),
        spread(
            f"{at}overall-gain-largest",
            f"tokens/s of both classes, HyGen over HyGen*, largest cell{where}",
            "times",
            _each(whole, max),
            ">= 3.87" if paper else None,
        ),
        spread(
            f"{at}cells-held",
            # No target, for it cannot fail: a budget is taken where it holds, else nothing runs.
            f"SLO cells that HyGen holds on the stretch of its profiling{where}",
            "share",
            _held(rows, "hygen"),
        ),
        spread(
            f"{at}cells-held-next",
            f"SLO cells that HyGen holds with each budget taken to the next stretch{where}",
            "share",
            _held(rows, "hygen-next"),
            ">= 1",
        ),
    ]


def _weir_claims(study: Study, rows: Rows, arm: str = "weir") -> list[Claim]:
    """Only preset `weir` itself has targets; without a part it says what the part costs."""
    whole = arm == "weir"
    at = study.claims_at if whole else f"{study.claims_at}nothing-kept/"
    where = study.where if whole else f", {arm.removeprefix('weir, ')}{study.where}"
    gains = _gains(rows, arm, "hygen", "offline_s")
    made = (
        ("cells-held", f"SLO cells that Weir holds{where}", "share", _held(rows, arm)),
        (
            "offline-gain-median",
            f"offline tokens/s of Weir over HyGen, median of the cells that Weir holds{where}",
            "times",
            _each(gains, median),
        ),
        ("offline-gain-smallest", f"the same, smallest cell{where}", "times", _each(gains, min)),
    )
    return [
        spread(f"weir/{at}{name}", what, unit, values, ">= 1" if whole else None)
        for name, what, unit, values in made
    ]


def notes_of(study: Study, rows: Rows) -> list[str]:
    """What was not reached, and by how much."""
    found, cells = [], study.cells
    absent = [arm for arm in study.arms if not any(arm in seed[0] for seed in rows)]
    if absent:
        found.append(f"**{study.name}/s: not measured:** {'; '.join(absent)}.")
    for arm in ("hygen", "weir"):
        own = [seed for seed in rows if arm in seed[0]]
        missed = [
            f"{_name(cell)} by {fmean(over):.1%}"
            for i, cell in enumerate(cells)
            if (over := [s[i][arm].ratio - 1 for s in own if s[i][arm].ratio > 1])
        ]
        if missed:
            found.append(
                f"**{arm} on {study.name}/s misses on at least one seed:** {', '.join(missed)}."
            )
    return found


def _name(cell: Cell) -> str:
    return f"{cell[1]} {cell[0].value.upper()} +{cell[2]:.0%}"


def table_of(study: Study, rows: Rows) -> Table:
    """Offline tokens/s of every arm in every cell; brackets: missed on some seed."""
    cells = study.cells

    def shown(i: int, arm: str) -> str:
        own = [seed[i][arm] for seed in rows if arm in seed[i]]
        if not own:
            return "-"
        text = f"{fmean(v.offline_s for v in own):,.0f}"
        missed = sum(v.ratio > 1 for v in own)
        return f"[{text}] {missed}/{len(own)}" if missed else text

    return Table(
        title=f"{study.name}/s, seeds: {len(rows)}. Offline tokens/s; in brackets where it misses, "
        "on how many seeds",
        header=("SLO over online alone", *study.arms),
        rows=tuple(
            (_name(cell), *(shown(i, arm) for arm in study.arms)) for i, cell in enumerate(cells)
        ),
    )
