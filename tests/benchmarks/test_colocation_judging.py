"""Who meets which cell of the co-location benchmark, and the claims that follow."""

import dataclasses

import pytest

from benchmarks.claims import Claim
from benchmarks.colocation.arms import ONLINE_ONLY, WEIR, Run, all_arms, gateway_arms, static_arms
from benchmarks.colocation.bound import bound_of
from benchmarks.colocation.cells import (
    Cell,
    all_cells,
    baseline_around,
    baseline_before,
    baseline_of,
    excess,
    holds,
)
from benchmarks.colocation.judge import judge
from benchmarks.colocation.report import worse
from benchmarks.colocation.statements import claims_of, pressure_claims
from tests.benchmarks.measured import measurement

ALONE = [measurement(tbt_s=(0.010,)), measurement(tbt_s=(0.012,))]
BASE = baseline_of(ALONE)


def test_the_matrix_is_five_slos_at_four_tolerances() -> None:
    assert len(set(all_cells())) == 20


def test_bounds_are_online_only_plus_the_tolerance() -> None:
    (target,) = BASE.targets(Cell(slo="p99-tbt", tolerance_percent=20))
    assert target.threshold_s == pytest.approx(0.011 * 1.2)


def test_the_spread_of_online_only_widens_the_bound_at_five_percent_only() -> None:
    run = measurement(tbt_s=(0.0125,))
    assert holds(run, Cell(slo="mean-tbt", tolerance_percent=5), BASE)
    assert not holds(run, Cell(slo="mean-tbt", tolerance_percent=10), BASE)


def test_a_run_is_judged_by_the_last_three_online_only_runs_before_it() -> None:
    early = [dataclasses.replace(measurement(tbt_s=(0.010,)), ended_s=s) for s in (1.0, 2.0, 3.0)]
    slower = [dataclasses.replace(measurement(tbt_s=(0.020,)), ended_s=s) for s in (7.0, 8.0, 9.0)]
    cell = Cell(slo="mean-tbt", tolerance_percent=20)
    run = measurement(tbt_s=(0.022,))
    assert holds(run, cell, baseline_before([*early, *slower], 9.5))
    assert not holds(run, cell, baseline_before([*early, *slower], 6.5))
    assert not holds(run, cell, baseline_before([*early, *slower], 0.5))


def test_the_online_only_runs_on_both_sides_of_a_run_make_up_for_drift() -> None:
    base = [
        dataclasses.replace(measurement(tbt_s=(0.010 + 0.001 * s,)), ended_s=float(s))
        for s in range(8)
    ]
    steady = baseline_around(base, 3.5)  # those at 2, 3, 4 and 5
    assert steady.value_s["tbt", "mean"] == pytest.approx(0.0135)
    assert steady.spread_s["tbt", "mean"] == pytest.approx(0.003)
    assert baseline_around(base, 9.0).value_s["tbt", "mean"] == pytest.approx(0.0165)
    assert baseline_around(base, -1.0).value_s["tbt", "mean"] == pytest.approx(0.0105)


def test_a_run_is_judged_by_what_it_was_told_and_the_drift_is_told_besides() -> None:
    cell = Cell(slo="mean-tbt", tolerance_percent=20)
    base = [
        dataclasses.replace(measurement(tbt_s=(tbt_s,)), ended_s=at_s)
        for at_s, tbt_s in ((1.0, 0.010), (2.0, 0.010), (4.0, 0.008), (5.0, 0.008))
    ]
    run = dataclasses.replace(measurement(tbt_s=(0.0114,)), ended_s=3.0)
    results = {Run(workload="trace", arm=WEIR, cell=cell, repeat=0): run}
    result = judge(results, "trace", cell, base, None)
    weir = result.verdicts["weir"]
    assert weir.holds
    assert weir.excess.mean == pytest.approx(0.95)
    assert weir.of_both_sides.mean == pytest.approx(1.0556, abs=1e-3)
    printed = worse([result], results, "trace", baseline_of(base))
    assert any("holds what was told, and is 5.6% over it" in line for line in printed)


def test_all_means_every_latency() -> None:
    cell = Cell(slo="all", tolerance_percent=50)
    assert holds(measurement(), cell, BASE)
    assert not holds(measurement(ttft_s=(0.16,)), cell, BASE)


def test_a_failed_online_request_breaks_every_cell() -> None:
    assert excess(measurement(failed=1), Cell(slo="mean-tbt", tolerance_percent=50), BASE) > 1


def test_the_bound_takes_the_fixed_part_and_the_online_share_off_full_speed() -> None:
    bound = bound_of(
        c0_s=0.005,
        online_only=[measurement(busy=0.4, steps=50.0)],
        ceiling=[measurement(served=9_500.0, busy=1.0, steps=10.0)],
        packed=[],
    )
    assert bound.online_share == pytest.approx(0.15)
    assert bound.full_per_s == pytest.approx(10_000)
    assert bound.tokens_per_s(0.05) == pytest.approx(7_500)
    assert bound.tokens_per_s(0.001) == 0


def claims_for(weir_served: float, weir_tbt_s: float) -> dict[str, Claim]:
    cell = Cell(slo="p99-tbt", tolerance_percent=50)
    static, aimd = static_arms()[0], next(arm for arm in all_arms() if arm.name == "aimd")
    results = {
        Run(workload="trace", arm=ONLINE_ONLY, cell=None, repeat=0): measurement(),
        Run(workload="trace", arm=static, cell=None, repeat=0): measurement(served=4_000.0),
        Run(workload="trace", arm=aimd, cell=cell, repeat=0): measurement(served=1_000.0),
        Run(workload="trace", arm=WEIR, cell=cell, repeat=0): measurement(
            served=weir_served, tbt_s=(weir_tbt_s,)
        ),
    }
    result = judge(results, "trace", cell, ALONE, None)
    return {c.id: c for c in claims_of([result], ceiling_per_s=10_000.0)}


def test_weir_is_compared_with_the_strongest_static_arm_that_holds() -> None:
    claims = claims_for(5_000.0, 0.012)
    assert claims["colocation/p99-tbt/50%/slo"].met
    assert claims["colocation/p99-tbt/50%/static"].value == pytest.approx(1.25)


def gateway_claim(tbt_s: dict[str, float]) -> Claim:
    """Under a mean TBT of 15 ms: what Weir's 3,000 tokens/s are compared with."""
    cell = Cell(slo="mean-tbt", tolerance_percent=50)
    served = {"aimd": 2_000.0, "aimd-50": 1_500.0, "aimd-25": 500.0}
    results = {
        Run(workload="trace", arm=ONLINE_ONLY, cell=None, repeat=0): measurement(),
        Run(workload="trace", arm=WEIR, cell=cell, repeat=0): measurement(served=3_000.0),
    } | {
        Run(workload="trace", arm=arm, cell=cell, repeat=0): measurement(
            served=served[arm.name], tbt_s=(tbt_s[arm.name],)
        )
        for arm in gateway_arms()
    }
    claims = claims_of([judge(results, "trace", cell, ALONE, None)], ceiling_per_s=10_000.0)
    return next(claim for claim in claims if claim.id == "colocation/mean-tbt/50%/aimd")


def test_weir_is_compared_with_the_gateway_that_serves_most_and_holds() -> None:
    claim = gateway_claim({"aimd": 0.02, "aimd-50": 0.012, "aimd-25": 0.011})
    assert claim.value == pytest.approx(2.0)
    assert claim.target == ">= 2"
    assert "gateway aimd-50, the best that holds" in claim.what


def test_gateways_that_all_miss_are_no_target() -> None:
    claim = gateway_claim({"aimd": 0.02, "aimd-50": 0.02, "aimd-25": 0.018})
    assert claim.value == pytest.approx(1.5)
    assert claim.target is None
    assert "gateway aimd, the best of those that all miss" in claim.what


def test_a_missed_slo_leaves_no_throughput_to_claim() -> None:
    claims = claims_for(50_000.0, 0.05)
    assert claims["colocation/p99-tbt/50%/slo"].met is False
    assert claims["colocation/p99-tbt/50%/static"].value is None
    assert claims["colocation/p99-tbt/50%/static"].met is False


@pytest.mark.parametrize(("tbt_s", "target"), [(0.015, ">= 1.2"), (0.030, None)])
def test_with_the_second_workload_an_arm_that_misses_is_named_without_a_target(
    tbt_s: float, target: str | None
) -> None:
    cell = Cell(slo="p99-tbt", tolerance_percent=50)
    results = {
        Run(workload="pressure", arm=ONLINE_ONLY, cell=None, repeat=0): measurement(),
        Run(workload="pressure", arm=static_arms()[0], cell=None, repeat=0): measurement(
            served=4_000.0, tbt_s=(tbt_s,)
        ),
        Run(workload="pressure", arm=WEIR, cell=cell, repeat=0): measurement(
            served=5_000.0, tbt_s=(0.012,)
        ),
    }
    result = judge(results, "pressure", cell, ALONE, None)
    claims = {c.id: c for c in pressure_claims([result], online_hit_rate=0.5)}
    assert claims["pressure/p99-tbt/50%/static"].value == pytest.approx(1.25)
    assert claims["pressure/p99-tbt/50%/static"].target == target
