"""OmniServe's comparison as data: the cells, and which arms run in each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.papers.omniserve_run import ARMS
from benchmarks.papers.omniserve_workload import Setup

A100 = "a100-80gb-pcie-llama-2-70b-tp4"
_RTX = "rtx-pro-6000-llama-3.1-8b"
_FEW = ("omniserve", "llumnix-like", "sarathi-serve", "weir")
_WITHOUT_WEIR = ("omniserve", "llumnix-like", "sarathi-serve")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One point of the evaluation: what differs from the main set-up, and who runs in it."""

    name: str
    setup: Setup
    arms: tuple[str, ...] = ARMS
    chunks: tuple[int, ...] = (256, 512)
    seeds: int = 3
    stock: bool = False
    refuse: bool = False


def cells_of(data: Path) -> tuple[Cell, ...]:
    """All of them; names are stable, for ``--only`` and for kept results."""
    main = Setup(profile=A100, data=data, rate_s=3.0, window_s=420.0, seed=0)
    short = replace(main, window_s=300.0, ramp_s=100.0)
    rtx = replace(
        main,
        profile=_RTX,
        rate_s=8.0,
        ttft_s=1.0,
        tpot_s=0.05,
        remote=0,
        window_s=110.0,
        ramp_s=40.0,
    )
    over = replace(main, rate_s=6.0, window_s=300.0)
    one = ("omniserve",)
    return (
        Cell(name="rate-3", setup=main, stock=True),
        Cell(
            name="tpot-0.15",
            setup=replace(short, tpot_s=0.15),
            arms=tuple(arm for arm in ARMS if arm != "aimd"),
            chunks=(256,),
            seeds=2,
            stock=True,
        ),
        Cell(name="overload", setup=over, arms=one, seeds=2),
        Cell(name="overload-admission", setup=over, arms=one, seeds=2, refuse=True),
        Cell(name="rtx", setup=rtx, arms=_FEW, chunks=(128, 256, 512), seeds=2),
        Cell(name="rate-4", setup=replace(short, rate_s=4.0), arms=_FEW, chunks=(512,), seeds=2),
        Cell(
            name="changing-5s",
            setup=replace(short, change_s=5.0),
            arms=_WITHOUT_WEIR,
            chunks=(512,),
            seeds=2,
        ),
        Cell(
            name="kv-60k",
            setup=replace(short, rate_s=2.0, kv_tokens=60_000),
            arms=_FEW,
            chunks=(512,),
            seeds=2,
        ),
        Cell(name="rate-1", setup=replace(short, rate_s=1.0), arms=_FEW, chunks=(512,), seeds=2),
        Cell(
            name="dailymail",
            setup=replace(short, offline="dailymail"),
            arms=_WITHOUT_WEIR,
            chunks=(512,),
            seeds=2,
        ),
        Cell(name="1g", setup=replace(short, remote=0), arms=one, seeds=2),
        Cell(name="10-gbit", setup=replace(short, network_bytes_s=1.25e9), arms=one, seeds=2),
        Cell(
            name="half-hour",
            setup=replace(main, window_s=1800.0),
            arms=("omniserve", "sarathi-serve"),
            chunks=(512,),
            seeds=1,
        ),
    )
