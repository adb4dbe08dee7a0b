"""What OmniServe's cells come to: claims and tables."""

from __future__ import annotations

from statistics import fmean

from benchmarks.claims import Claim
from benchmarks.papers.omniserve_cells import A100
from benchmarks.papers.omniserve_outcomes import Outcomes, Seeds
from benchmarks.papers.omniserve_run import dram_bound_s, lane_bound_s
from benchmarks.papers.paper import Table, spread

_MAIN = ("rate-1", "rate-3", "rate-4")
_WITH_WEIR = ("rate-1", "rate-3", "rate-4", "tpot-0.15", "kv-60k", "rtx")


def claims_of(found: Outcomes) -> tuple[Claim, ...]:
    """The headlines, what each conclusion is on RTX PRO 6000, and Weir against OmniServe."""
    return (
        *_attainment(found),
        *_offline(found),
        *_admission(found),
        *_rtx(found),
        spread(
            "omniserve/prediction-error",
            "mean absolute error of the predicted step, in use",
            "share",
            [x for name in _MAIN for x in found.each(name, "omniserve", "error")],
        ),
        *(claim for name in _WITH_WEIR for claim in _weir(found, name)),
    )


def _lost(found: Outcomes, cell: str) -> list[float]:
    """Attainment that Sarathi-Serve has and OmniServe has not."""
    return found.above(cell, "sarathi-serve", "omniserve", "attainment")


def _attainment(found: Outcomes) -> list[Claim]:
    steady = [name for name in ("rate-1", "rate-3") if name in found]
    return [
        spread(
            "omniserve/attainment-gain",
            "attainment over Llumnix-like at its best chunk, TPOT 0.15 s",
            "times",
            found.ratios("tpot-0.15", "omniserve", "llumnix-like", "attainment"),
            ">= 1.48",
        ),
        spread(
            "omniserve/attainment-lost",
            f"attainment below Sarathi-Serve, {' and '.join(steady)} (negative: above)",
            "share",
            [lost for name in steady for lost in _lost(found, name)],
            "<= 0.006",
        ),
        spread(
            "omniserve/attainment-lost/changing",
            "the same where the rate changes every 5 s",
            "share",
            _lost(found, "changing-5s"),
            "<= 0.006",
        ),
    ]


def _offline(found: Outcomes) -> list[Claim]:
    claims = []
    for name, field, what, target in (
        ("offline", "offline_s", "offline tokens/s", ">= 9.85"),
        ("decode", "decoded_s", "offline tokens/s decoded", None),
    ):
        value, where = found.largest(field)
        claims.append(
            Claim(
                id=f"omniserve/largest-{name}-gain",
                what=f"{what}, largest mean ratio: {where}",
                unit="times",
                value=value,
                target=target,
            )
        )
    return claims


def _admission(found: Outcomes) -> list[Claim]:
    with_it, without = (
        found.each(cell, "omniserve", "online_s") for cell in ("overload-admission", "overload")
    )
    both = zip(with_it, without, strict=True) if with_it and without else ()
    return [
        spread(
            "omniserve/admission",
            "TTFT attainment of the admitted at 6 requests/s",
            "share",
            found.each("overload-admission", "omniserve", "ttft"),
            ">= 0.941",
        ),
        spread(
            "omniserve/admission/all",
            "attainment of all at 6 requests/s, a refused one missed",
            "share",
            found.each("overload-admission", "omniserve", "attainment"),
        ),
        spread(
            "omniserve/admission/none",
            "the same without admission",
            "share",
            found.each("overload", "omniserve", "attainment"),
        ),
        spread(
            "omniserve/admission/throughput",
            "online tokens/s with admission over without",
            "times",
            [a / b for a, b in both],
            ">= 0.94",
        ),
    ]


def _rtx(found: Outcomes) -> list[Claim]:
    return [
        spread(
            "omniserve/attainment-lost/rtx",
            "attainment below Sarathi-Serve, RTX PRO 6000",
            "share",
            _lost(found, "rtx"),
            "<= 0.006",
        ),
        spread(
            "omniserve/offline-gain/rtx",
            "offline tokens/s over Sarathi-Serve, RTX PRO 6000",
            "times",
            found.ratios("rtx", "omniserve", "sarathi-serve", "offline_s"),
            ">= 1",
        ),
    ]


def _weir(found: Outcomes, cell: str) -> list[Claim]:
    return [
        spread(
            f"weir/omniserve/{cell}/offline-gain",
            f"offline tokens/s, Weir over OmniServe ({cell})",
            "times",
            found.ratios(cell, "weir", "omniserve", "offline_s"),
            ">= 1",
        ),
        spread(
            f"weir/omniserve/{cell}/attainment",
            f"attainment, Weir less OmniServe ({cell})",
            "share",
            found.above(cell, "weir", "omniserve", "attainment"),
            ">= -0.005",
        ),
    ]


def bounds_of(found: Outcomes) -> Table:
    """What DRAM and host memory allow the lane, beside what it gave."""
    rows = []
    for cell, offline, hosts in (
        ("rate-3", "longbench", 5),
        ("1g", "longbench", 1),
        ("10-gbit", "longbench", 5),
        ("dailymail", "dailymail", 5),
        ("half-hour", "longbench", 5),
    ):
        if cell not in found:
            continue
        step_s = found.mean(cell, "omniserve", "step_s")
        rows.append(
            (
                cell,
                f"{dram_bound_s(A100, offline, hosts):.0f}",
                f"{lane_bound_s(A100, offline, hosts, step_s):.1f}",
                f"{found.mean(cell, 'omniserve', 'cpu_s'):.2f}",
                f"{found.mean(cell, 'omniserve', 'decoded_s'):.2f}",
                f"{found.mean(cell, 'omniserve', 'offline_s'):.0f}",
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


def table_of(name: str, seeds: Seeds) -> Table:
    """Means over the seeds of one cell."""

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
