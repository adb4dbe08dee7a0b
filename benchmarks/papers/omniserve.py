"""OmniServe in the simulator: attainment and offline throughput with attention on host CPUs.

Set-up of the paper: Llama-2-70B on four A100 80 GB over PCIe with five CPU hosts, ShareGPT lengths
online, LongBench-v2 or DailyMail lengths offline. RTX PRO 6000 with one host beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.claims import Claim
from benchmarks.papers.omniserve_run import (
    ARMS,
    CHUNKED,
    Outcome,
    Setup,
    dram_bound_s,
    lane_bound_s,
    plain,
    simulate,
)
from benchmarks.papers.paper import Options, PaperResult, Table, kept, spread

_A100 = "a100-80gb-pcie-llama-2-70b-tp4"
_RTX = "rtx-pro-6000-llama-3.1-8b"
_STOCK_CHUNK = 2048
_FEW = ("omniserve", "llumnix-like", "sarathi-serve", "weir")

Seeds = list[dict[str, Outcome]]


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
    main = Setup(profile=_A100, data=data, rate_s=3.0, window_s=420.0, seed=0)
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
            arms=("omniserve", "llumnix-like", "sarathi-serve"),
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
            arms=("omniserve", "llumnix-like", "sarathi-serve"),
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


def run(options: Options) -> PaperResult:
    """Every cell, or those named by ``--only``."""
    found: dict[str, Seeds] = {}
    for cell in cells_of(options.data):
        if options.only and cell.name not in options.only:
            continue
        if options.quick:
            shorter = replace(cell.setup, window_s=cell.setup.ramp_s + 30.0)
            cell = replace(cell, setup=shorter, seeds=1)  # noqa: PLW2901
        found[cell.name] = _judge(cell, options)
    tables = tuple(_table(name, seeds) for name, seeds in found.items())
    if "rate-3" not in found:
        return PaperResult(claims=(), tables=tables)
    return PaperResult(
        claims=claims_of(found), notes=notes_of(found), tables=(bounds_of(found), *tables)
    )


def _judge(cell: Cell, options: Options) -> Seeds:
    """Each seed's arms; a baseline's chunk is the best on the first seed."""
    chosen: dict[str, int] = {}
    seeds: Seeds = []
    for seed in options.seeds[: cell.seeds]:
        setup = replace(cell.setup, seed=seed)

        def make(setup: Setup = setup, chosen: dict[str, int] = dict(chosen)) -> dict[str, Any]:  # noqa: B006
            return _arms(cell, setup, chosen)

        kept_now = kept(options, "omniserve", f"{cell.name}-{seed}", make)
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


# -- claims -----------------------------------------------------------------------------------

_MAIN = ("rate-1", "rate-3", "rate-4")
_NEAR_ZERO_S = 1.0  # a ratio to less than this many tokens a second says nothing
_LOADED = (*_MAIN, "tpot-0.15", "kv-60k", "dailymail")


def _each(seeds: Seeds, arm: str, field: str) -> list[float]:
    return [float(getattr(seed[arm], field)) for seed in seeds]


def _ratios(seeds: Seeds, of: str, base: str, field: str) -> list[float]:
    pairs = zip(_each(seeds, of, field), _each(seeds, base, field), strict=True)
    return [a / b for a, b in pairs if b > 0]


def _lost(seeds: Seeds) -> list[float]:
    """Attainment that Sarathi-Serve has and OmniServe has not."""
    of, base = _each(seeds, "omniserve", "attainment"), _each(seeds, "sarathi-serve", "attainment")
    return [b - a for a, b in zip(of, base, strict=True)]


def _largest(found: dict[str, Seeds], field: str) -> tuple[float, str]:
    """The largest mean ratio to a baseline of the paper that serves at all, and where it is."""
    best = (0.0, "nowhere")
    for name in _LOADED:
        for base in ("llumnix-like", "neo-like", "sarathi-serve"):
            runs = found.get(name, [])
            seeds = [s for s in runs if base in s and getattr(s[base], field) > _NEAR_ZERO_S]
            if ratios := _ratios(seeds, "omniserve", base, field):
                best = max(best, (fmean(ratios), f"{name} over {base}"))
    return best


def claims_of(found: dict[str, Seeds]) -> tuple[Claim, ...]:
    """The headlines, and what each conclusion is on RTX PRO 6000."""
    steady = [name for name in ("rate-1", "rate-3") if name in found]
    claims = [
        spread(
            "omniserve/attainment-gain",
            "attainment over Llumnix-like at its best chunk, TPOT 0.15 s",
            "times",
            _ratios(found.get("tpot-0.15", []), "omniserve", "llumnix-like", "attainment"),
            ">= 1.48",
        ),
        spread(
            "omniserve/attainment-lost",
            f"attainment below Sarathi-Serve, {' and '.join(steady)} (negative: above)",
            "share",
            [lost for name in steady for lost in _lost(found[name])],
            "<= 0.006",
        ),
        spread(
            "omniserve/attainment-lost/changing",
            "the same where the rate changes every 5 s",
            "share",
            _lost(found.get("changing-5s", [])),
            "<= 0.006",
        ),
    ]
    for field, what, target in (
        ("offline_s", "offline tokens/s", ">= 9.85"),
        ("decoded_s", "offline tokens/s decoded", None),
    ):
        value, where = _largest(found, field)
        claims.append(
            Claim(
                id=f"omniserve/largest-{'offline' if target else 'decode'}-gain",
                what=f"{what}, largest mean ratio: {where}",
                unit="times",
                value=value,
                target=target,
            )
        )
    with_it, without = found.get("overload-admission", []), found.get("overload", [])
    paired = zip(
        _each(with_it, "omniserve", "online_s"),
        _each(without, "omniserve", "online_s"),
        strict=True,
    )
    claims += [
        spread(
            "omniserve/admission",
            "TTFT attainment of the admitted at 6 requests/s",
            "share",
            _each(with_it, "omniserve", "ttft"),
            ">= 0.941",
        ),
        spread(
            "omniserve/admission/all",
            "attainment of all at 6 requests/s, a refused one missed",
            "share",
            _each(with_it, "omniserve", "attainment"),
        ),
        spread(
            "omniserve/admission/none",
            "the same without admission",
            "share",
            _each(without, "omniserve", "attainment"),
        ),
        spread(
            "omniserve/admission/throughput",
            "online tokens/s with admission over without",
            "times",
            [a / b for a, b in paired],
            ">= 0.94",
        ),
        spread(
            "omniserve/attainment-lost/rtx",
            "attainment below Sarathi-Serve, RTX PRO 6000",
            "share",
            _lost(found.get("rtx", [])),
            "<= 0.006",
        ),
        spread(
            "omniserve/offline-gain/rtx",
            "offline tokens/s over Sarathi-Serve, RTX PRO 6000",
            "times",
            _ratios(found.get("rtx", []), "omniserve", "sarathi-serve", "offline_s"),
            ">= 1",
        ),
        spread(
            "omniserve/prediction-error",
            "mean absolute error of the predicted step, in use",
            "share",
            [x for name in _MAIN for x in _each(found.get(name, []), "omniserve", "error")],
        ),
    ]
    for name in ("rate-1", "rate-3", "rate-4", "tpot-0.15", "kv-60k", "rtx"):
        seeds = found.get(name, [])
        of, base = _each(seeds, "weir", "attainment"), _each(seeds, "omniserve", "attainment")
        claims += [
            spread(
                f"weir/omniserve/{name}/offline-gain",
                f"offline tokens/s, Weir over OmniServe ({name})",
                "times",
                _ratios(seeds, "weir", "omniserve", "offline_s"),
                ">= 1",
            ),
            spread(
                f"weir/omniserve/{name}/attainment",
                f"attainment, Weir less OmniServe ({name})",
                "share",
                [a - b for a, b in zip(of, base, strict=True)],
                ">= -0.005",
            ),
        ]
    return tuple(claims)


def notes_of(found: dict[str, Seeds]) -> tuple[str, ...]:
    """What was not measured or not reached, with the measured reason."""
    notes = []
    missing = [cell.name for cell in cells_of(Path()) if cell.name not in found]
    if missing:
        notes.append(
            f"**Not measured yet: {', '.join(missing)}.** Claims on them count as not met; the "
            "command below measures them."
        )
    if tight := found.get("tpot-0.15"):
        tuned, stock, own = (
            fmean(_each(tight, arm, "attainment"))
            for arm in ("llumnix-like", "llumnix-like, untuned", "omniserve")
        )
        notes.append(
            "**1.48 times Llumnix-like's attainment is a matter of its chunk.** At TPOT 0.15 s it "
            f"attains {tuned:.1%} at 256 tokens a step and {stock:.1%} at 2,048, OmniServe "
            f"{own:.1%}: what it lacks is a bound on the step, which a smaller chunk gives it."
        )
    if admitted := found.get("overload-admission"):
        shares = sorted(_each(admitted, "omniserve", "ttft"))
        notes.append(
            f"**Admission: {shares[0]:.1%} to {shares[-1]:.1%} of the admitted get their first "
            "token in time at 6 requests/s (94.1% in the paper), none without it.** Why one seed "
            "stays below was not looked into."
        )
    offline, where = _largest(found, "offline_s")
    main = found["rate-3"]
    step_s, cpu = (fmean(_each(main, "omniserve", name)) for name in ("step_s", "cpu_s"))
    dram = dram_bound_s(_A100, "longbench", 5)
    lane = lane_bound_s(_A100, "longbench", 5, step_s)
    decoded, served = (
        [fmean(_each(main, arm, name)) for arm in ("omniserve", "sarathi-serve")]
        for name in ("decoded_s", "offline_s")
    )
    notes.append(
        "**9.85 times the offline throughput does not arise; the largest ratio is "
        f"{offline:.2f} ({where}).** A prompt of 8,952 tokens takes the GPUs far longer than its "
        "136 decodes, and their KV memory has room for both, so prefill on the GPUs bounds every "
        f"arm. DRAM would allow {dram:.0f} decodes/s on five CPU hosts; a token takes 80 steps of "
        f"{step_s * 1e3:.0f} ms, so a lane full to the last byte gives {lane:.0f}, and ours, which "
        f"fills as fast as prompts are computed, gave {cpu:.1f}."
    )
    notes.append(
        "**Offline prompts before offline decodes, the paper's order, sends decodes to the CPUs "
        "that the GPUs had time for:** at 3 requests/s OmniServe decodes "
        f"{decoded[0]:.1f} offline tokens/s and Sarathi-Serve {decoded[1]:.1f}; of all offline "
        f"tokens they serve {served[0]:.0f} and {served[1]:.0f} a second."
    )
    both = ("weir", "omniserve")
    behind = [
        name
        for name in _LOADED
        if (found.get(name) and "weir" in found[name][0])
        and fmean(_ratios(found[name], "weir", "omniserve", "offline_s")) < 1
    ]
    if behind:
        shown = "; ".join(
            " and ".join(f"{1e3 * fmean(_each(found[name], arm, 'step_s')):.0f}" for arm in both)
            + f" ms in {name}"
            for name in behind
        )
        notes.append(
            f"**Weir serves less than OmniServe in {', '.join(behind)}.** Where the pace binds, "
            "what a step holds beyond its decodes grows with every millisecond, and Weir's steps "
            f"end earlier, by the tail that it measures (mean, Weir's and OmniServe's: {shown})."
        )
    return tuple(notes)


def bounds_of(found: dict[str, Seeds]) -> Table:
    """What DRAM and host memory allow the lane, beside what it gave."""
    rows = []
    for name, offline, hosts in (
        ("rate-3", "longbench", 5),
        ("1g", "longbench", 1),
        ("10-gbit", "longbench", 5),
        ("dailymail", "dailymail", 5),
        ("half-hour", "longbench", 5),
    ):
        if name not in found:
            continue
        step_s = fmean(_each(found[name], "omniserve", "step_s"))
        rows.append(
            (
                name,
                f"{dram_bound_s(_A100, offline, hosts):.0f}",
                f"{lane_bound_s(_A100, offline, hosts, step_s):.1f}",
                f"{fmean(_each(found[name], 'omniserve', 'cpu_s')):.2f}",
                f"{fmean(_each(found[name], 'omniserve', 'decoded_s')):.2f}",
                f"{fmean(_each(found[name], 'omniserve', 'offline_s')):.0f}",
            )
        )
    header = (
        "cell",
        "bound by DRAM, decodes/s",
        "by host memory, decodes/s",
        "lane's decodes/s",
        "all decodes/s",
        "offline tokens/s",
    )
    return Table(title="What bounds the CPU lane", header=header, rows=tuple(rows))


def _table(name: str, seeds: Seeds) -> Table:
    def row(arm: str) -> tuple[str, ...]:
        own = [seed[arm] for seed in seeds]
        return (
            arm,
            f"{fmean(o.attainment for o in own):.1%}",
            f"{fmean(o.ttft for o in own):.1%}",
            f"{fmean(o.tpot for o in own):.1%}",
            f"{fmean(o.offline_s for o in own):,.0f}",
            f"{fmean(o.decoded_s for o in own):,.2f}",
            f"{fmean(o.cpu_s for o in own):,.2f}",
            f"{fmean(o.online_s for o in own):,.0f}",
            f"{fmean(o.refused for o in own):.1%}",
            f"{1e3 * fmean(o.step_s for o in own):,.0f}",
        )

    header = (
        "arm",
        "attainment",
        "TTFT",
        "TPOT",
        "offline tokens/s",
        "decoded",
        "on CPUs",
        "online tokens/s",
        "refused",
        "step ms",
    )
    return Table(title=name, header=header, rows=tuple(row(arm) for arm in seeds[0]))
