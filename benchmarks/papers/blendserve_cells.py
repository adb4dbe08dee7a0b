"""BlendServe's comparison as data: the arms, and every run of every arm."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.papers.blendserve_case import RESERVE, Arm
from benchmarks.papers.blendserve_workload import TRACES, Mix
from benchmarks.papers.paper import Options
from weir_engine.sim.profile_cost import Backend, Interference

A100, RTX = "a100-80gb-llama-3.1-8b", "rtx-pro-6000-llama-3.1-8b"
KV_BYTES = 60e9
REQUESTS, FACTOR = 50_000, 16
SIZES = (25_000, 100_000)
_TILE = 128

_S, _O = Backend.SEQUENTIAL, Backend.OVERLAPPED
ARMS = {
    arm.name: arm
    for arm in (
        Arm(name="vLLM-DFS", order="dfs", backend=_S, stock=True, max_seqs=256),
        Arm(name="SGLang-DFS", order="dfs", backend=_S, reserve=RESERVE),
        Arm(name="blend-sequential", order="blend", backend=_S, reserve=RESERVE),
        Arm(name="NanoFlow-DFS", order="dfs", backend=_O, reserve=RESERVE, multiple=_TILE),
        Arm(name="NanoFlow-Balance", order="shuffled", backend=_O, reserve=RESERVE, multiple=_TILE),
        Arm(name="BlendServe", order="blend", backend=_O, reserve=RESERVE, multiple=_TILE),
        # Its order looks ahead at what is held: nothing is kept besides.
        Arm(name="Weir", order="paced", backend=_O, reserve=0.0, multiple=_TILE, weir=True),
        Arm(name="BlendServe-untiled", order="blend", backend=_O, reserve=RESERVE),
    )
}
DECLARED = Interference()  # both coefficients are equal
BASE, OURS = "NanoFlow-DFS", "BlendServe"
WEIR = "Weir"
PAIR = (BASE, OURS)
TRIO = (*PAIR, WEIR)
SPLITS = (4, 16, 64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One run: which arm on which mix, device, seed and size.

    ``level``: both coefficients of the interference. ``apart``: attention of prefills and of
    decodes in kernels of their own. Plain values: a compiled engine's classes reach no process.
    """

    part: str
    arm: str
    mix: Mix
    seed: int
    requests: int = REQUESTS
    profile: str = A100
    factor: int = FACTOR
    level: float = DECLARED.linear
    apart: bool = False

    @property
    def interference(self) -> Interference:
        """How much longer kernels take that share the GPU."""
        return Interference(linear=self.level, square=self.level)

    @property
    def name(self) -> str:
        """For the resume folder."""
        at = f"{self.mix.density:g}-{self.mix.sharing:g}"
        return f"{self.part}-{self.arm}-{at}-{self.seed}-{self.requests}-{self.factor}".lower()


def cells(options: Options) -> list[Cell]:
    """All runs, the headline's first."""
    first = options.seeds[0]
    traces = list(TRACES.values())
    trace = traces[0]
    main = [
        *(Cell(part="main", arm=arm, mix=to, seed=first)
          for to in traces for arm in (*TRIO, "vLLM-DFS")),
        *(Cell(part="main", arm=arm, mix=trace, seed=seed)
          for seed in options.seeds[1:] for arm in TRIO),
        *(Cell(part="main", arm=arm, mix=trace, seed=first)
          for arm in ("SGLang-DFS", "blend-sequential", "BlendServe-untiled")),
        *(Cell(part="main", arm="NanoFlow-Balance", mix=to, seed=first)
          for to in (trace, traces[2])),
    ]  # fmt: skip
    rtx = [
        Cell(part="rtx", arm=arm, mix=to, seed=first, profile=RTX) for to in traces for arm in PAIR
    ]
    rtx += [Cell(part="rtx", arm=WEIR, mix=trace, seed=first, profile=RTX)]
    rtx += [
        Cell(part="rtx-apart", arm=arm, mix=trace, seed=first, profile=RTX, apart=True)
        for arm in TRIO
    ]
    sizes = [
        Cell(part="size", arm=arm, mix=trace, seed=first, requests=size)
        for size in SIZES
        for arm in TRIO
    ]
    coarse = [
        Cell(part="coarse", arm=arm, mix=trace, seed=first, factor=factor)
        for factor in (8, 64)
        for arm in TRIO
    ]
    interference = [
        Cell(part=f"interference{level:g}", arm=arm, mix=traces[1], seed=first, requests=25_000,
             level=level)
        for level in (0.0, 0.25)
        for arm in TRIO
    ]  # fmt: skip
    found = [*main, *rtx, *sizes, *coarse, *interference]
    if options.quick:
        return [replace(cell, requests=4_000) for cell in main if cell.mix == trace]
    return [cell for cell in found if not options.only or cell.part in options.only]
