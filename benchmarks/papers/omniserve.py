"""OmniServe in the simulator: attainment and offline throughput with attention on host CPUs.

Set-up of the paper: Llama-2-70B on four A100 80 GB over PCIe with five CPU hosts, ShareGPT lengths
online, LongBench-v2 or DailyMail lengths offline. RTX PRO 6000 with one host beside it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.papers.omniserve_cells import Cell, cells_of
from benchmarks.papers.omniserve_notes import notes_of
from benchmarks.papers.omniserve_outcomes import Outcomes, Seeds
from benchmarks.papers.omniserve_report import bounds_of, claims_of, table_of
from benchmarks.papers.omniserve_run import CHUNKED, Outcome, plain, simulate
from benchmarks.papers.omniserve_workload import Setup
from benchmarks.papers.paper import Options, PaperResult, kept

_STOCK_CHUNK = 2048


def run(options: Options) -> PaperResult:
    """Every cell, or those named by ``--only``."""
    found: dict[str, Seeds] = {}
    for cell in cells_of(options.data):
        if options.only and cell.name not in options.only:
            continue
        if options.quick:
            shorter = replace(cell.setup, window_s=cell.setup.ramp_s + 30.0)
            cell = replace(cell, setup=shorter, seeds=1)  # noqa: PLW2901
        seeds = _judge(cell, options)
        if seeds is not None:
            found[cell.name] = seeds
    tables = tuple(table_of(name, seeds) for name, seeds in found.items())
    if options.only and "rate-3" not in found:
        return PaperResult(claims=(), tables=tables)
    outcomes = Outcomes(found)
    return PaperResult(
        claims=claims_of(outcomes),
        notes=notes_of(outcomes),
        tables=(bounds_of(outcomes), *tables),
    )


def _judge(cell: Cell, options: Options) -> Seeds | None:
    """Each seed's arms; a baseline's chunk is the best on the first seed.

    None: a seed is not there, and nothing is to be run. A cell counts whole or not at all, since
    some claims compare the seeds of two cells.
    """
    chosen: dict[str, int] = {}
    seeds: Seeds = []
    for seed in options.seeds[: cell.seeds]:
        setup = replace(cell.setup, seed=seed)

        def make(setup: Setup = setup, chosen: dict[str, int] = dict(chosen)) -> dict[str, Any]:  # noqa: B006
            return _arms(cell, setup, chosen)

        kept_now = kept(options, "omniserve", f"{cell.name}-{seed}", make)
        if kept_now is None:
            return None
        chosen = chosen or {arm: one["chunk"] for arm, one in kept_now.items() if "chunk" in one}
        seeds.append({arm: Outcome(**one["outcome"]) for arm, one in kept_now.items()})
    return seeds


def _arms(cell: Cell, setup: Setup, chosen: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for arm in cell.arms:
        if arm not in CHUNKED:
            found[arm] = {"outcome": plain(simulate(setup, arm, refuse=cell.refuse))}
            continue
        chunks = (chosen[arm],) if arm in chosen else cell.chunks
        runs = [(simulate(setup, arm, chunk), chunk) for chunk in chunks]
        best, chunk = max(runs, key=lambda run: (round(run[0].attainment, 2), run[0].offline_s))
        found[arm] = {"outcome": plain(best), "chunk": chunk}
    if cell.stock:
        stock = simulate(setup, "llumnix-like", _STOCK_CHUNK)
        found["llumnix-like, untuned"] = {"outcome": plain(stock)}
    return found
