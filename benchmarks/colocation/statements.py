"""The claims that follow from judged cells. Pure; targets are those of the project's design."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.claims import Claim
from benchmarks.colocation.judge import CellResult, Figure, Verdict

WEIR = "weir"


def claims_of(cells: Sequence[CellResult], *, ceiling_per_s: float) -> list[Claim]:
    """Claims of the first workload: SLO, bound, strongest static arm, gateway, ceiling."""
    claims: list[Claim] = []
    for result in cells:
        weir = result.verdicts.get(WEIR)
        if weir is None:
            continue
        claims.append(_slo(result, weir))
        if result.cell.slo == "p99-tbt":
            claims += _tail(result, weir)
        else:
            claims += _against_gateway(result, weir)
            if result.cell.tolerance_percent == 50:
                claims.append(
                    _ratio(
                        result,
                        weir,
                        "ceiling",
                        over=ceiling_per_s,
                        what="offline tokens served over the ceiling",
                        target=">= 0.35",
                    )
                )
    return claims


def pressure_claims(cells: Sequence[CellResult], *, online_hit_rate: float) -> list[Claim]:
    """Claims of the second workload: SLO, best static arm with stock eviction, online hits."""
    claims: list[Claim] = []
    for result in cells:
        weir = result.verdicts.get(WEIR)
        if weir is None:
            continue
        claims.append(_slo(result, weir))
        static = result.best_static() or result.best_static(holding=False)
        if static is not None:
            which = "that holds" if static.holds else "of those that all miss this SLO"
            claims.append(
                _ratio(
                    result,
                    weir,
                    "static",
                    over=static.served.mean,
                    what=f"offline tokens served over {static.arm}, the best {which}",
                    target=">= 1.2" if static.holds else None,
                )
            )
        claims.append(
            Claim(
                id=_id(result, "hit-rate"),
                what="online prefix hit rate over that of online-only",
                unit="x",
                value=weir.hit_rate / online_hit_rate if online_hit_rate else None,
                baseline=online_hit_rate,
                target=">= 0.95",
            )
        )
    return claims


def _id(result: CellResult, part: str) -> str:
    family = "colocation" if result.workload == "trace" else result.workload
    return f"{family}/{result.cell.name}/{part}"


def _slo(result: CellResult, weir: Verdict) -> Claim:
    bounds = ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in result.thresholds_s.items())
    return Claim(
        id=_id(result, "slo"),
        what=f"largest measured online latency over the bound told (over all runs: {bounds})",
        unit="x",
        value=weir.excess.mean,
        low=weir.excess.low,
        high=weir.excess.high,
        target="<= 1",
    )


def _tail(result: CellResult, weir: Verdict) -> list[Claim]:
    claims = []
    if result.bound_per_s:
        claims.append(
            _ratio(
                result,
                weir,
                "bound",
                over=result.bound_per_s,
                what="offline tokens served over the bound (1 - c0/S - u)",
                target=">= 0.95",
            )
        )
    static = result.best_static()
    if static is not None:
        claims.append(
            _ratio(
                result,
                weir,
                "static",
                over=static.served.mean,
                what=f"offline tokens served over {static.arm}, the best static arm that holds",
                target=">= 1",
            )
        )
    stock = result.verdicts.get("stock-priority")
    if stock is not None and result.cell.tolerance_percent == 50:
        claims.append(
            _ratio(
                result,
                weir,
                "stock-priority",
                over=stock.served.mean,
                what="offline tokens served over stock priority (goal 6)",
                target=">= 4",
            )
        )
    return claims


def _against_gateway(result: CellResult, weir: Verdict) -> list[Claim]:
    claims = []
    gateway = result.best_gateway()
    static = result.best_static()
    if gateway is not None:
        which = "that holds" if gateway.holds else "of those that all miss this SLO"
        claims.append(
            _ratio(
                result,
                weir,
                "aimd",
                over=gateway.served.mean,
                what=f"offline tokens served over gateway {gateway.arm}, the best {which} (goal 3)",
                target=">= 2" if gateway.holds and static is None else None,
            )
        )
    if static is not None:
        claims.append(
            _ratio(
                result,
                weir,
                "static",
                over=static.served.mean,
                what=f"offline tokens served over {static.arm}, the best static arm that holds",
                target=">= 1",
            )
        )
    return claims


def _ratio(
    result: CellResult,
    weir: Verdict,
    part: str,
    *,
    over: float,
    what: str,
    target: str | None,
) -> Claim:
    """Weir's served tokens over something; no value where Weir misses the SLO."""
    if over <= 0 or not weir.holds:
        reason = " (Weir misses the SLO)" if not weir.holds else " (nothing to compare with)"
        return Claim(
            id=_id(result, part),
            what=what + reason,
            unit="x",
            value=None,
            baseline=over,
            target=target,
        )
    scaled = _scaled(weir.served, over)
    return Claim(
        id=_id(result, part),
        what=what,
        unit="x",
        value=scaled.mean,
        low=scaled.low,
        high=scaled.high,
        baseline=over,
        target=target,
    )


def _scaled(given: Figure, over: float) -> Figure:
    return Figure(mean=given.mean / over, low=given.low / over, high=given.high / over)
