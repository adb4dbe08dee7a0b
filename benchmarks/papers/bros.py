"""BROS in the simulator: first come first served, round robin, BROS, its ablation, and Weir.

Set-up of the paper: OPT-13B on two A100 40 GB, ShareGPT prompts by a Poisson process online, sets
of synthetic documents offline, whole prompts, no prefix cache. ``bros_run`` runs one arm.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.papers.ablation import interpreted, runs_apart
from benchmarks.papers.bros_report import claims_of, not_measured, notes_of, tables_of
from benchmarks.papers.bros_run import Outcome, Setup, shorter, simulate
from benchmarks.papers.bros_studies import BEST_VLLM, MORE, STUDIES, VLLM, Rates, Study
from benchmarks.papers.paper import Options, PaperResult, chosen, joined, kept, parallel


def run(options: Options) -> PaperResult:
    """The paper's set-up, RTX PRO 6000 with as large a cache, and Weir and BROS for a minute."""
    return joined(_run(study, options) for study in chosen(options, STUDIES))


def _run(study: Study, options: Options) -> PaperResult:
    made = {seed: _seed(study, seed, options) for seed in options.seeds[: study.seeds]}
    seeds = [rates for rates in made.values() if rates is not None]
    absent = [seed for seed, rates in made.items() if rates is None]
    return PaperResult(
        claims=tuple(claims_of(study, seeds)),
        notes=(*not_measured(study, absent), *notes_of(study, seeds)),
        tables=tuple(tables_of(study, seeds)),
    )


def _seed(study: Study, seed: int, options: Options) -> Rates | None:
    """What each arm came to at each rate; None: some of it is not there, and nothing is to run."""
    cells = [
        (study, rate_s, seed, arm)
        for rate_s in study.rates_s
        for arm in (*study.arms, *(MORE if rate_s == study.more_at_s else ()))
    ]
    found = parallel(options, _Cell(options), cells)
    rates: Rates = {rate_s: {} for rate_s in study.rates_s}
    for (_, rate_s, _, arm), outcome in zip(cells, found, strict=True):
        if outcome is None:
            return None
        rates[rate_s][arm] = outcome
    for arms in rates.values() if VLLM[0] in study.arms else ():
        arms[BEST_VLLM] = min((arms[arm] for arm in VLLM), key=lambda o: o.latency_s)
    return rates


@dataclass(frozen=True, slots=True)
class _Cell:
    """Runs a cell, or reads what it came to before; None: it is not there and not to be run."""

    options: Options

    def __call__(self, cell: tuple[Study, float, int, str]) -> Outcome | None:
        study, rate_s, seed, arm = cell
        setup = Setup(
            profile=study.profile,
            data=self.options.data,
            rate_s=rate_s,
            window_s=study.window_s,
            seed=seed,
            kv_tokens=study.kv_tokens,
        )
        if self.options.quick:
            setup = shorter(setup)

        def make() -> dict[str, Any]:
            if runs_apart(arm):
                return interpreted(simulate.__module__, setup, arm)
            return asdict(simulate(setup, arm))

        part = f"{study.name}-{rate_s:g}-{seed}-{arm}"
        plain = kept(self.options, "bros", part, make)
        return None if plain is None else Outcome(**plain)
