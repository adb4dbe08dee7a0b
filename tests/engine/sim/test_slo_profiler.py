"""The SLO-aware profiler: the highest level whose latencies hold (HyGen §4.2)."""

import pytest

from tests.engine.sim.runs import POLICY, SHAPE, offline, online
from weir_engine.config import Metric, Slo
from weir_engine.errors import ConfigError
from weir_engine.kv.eviction import LruEviction
from weir_engine.sim.cost import CPU_2_CORES
from weir_engine.sim.preset_run import run_preset
from weir_engine.sim.replica import Replica
from weir_engine.sim.report import Latencies, attained
from weir_engine.sim.slo_profiler import SloProfiler, geometric_levels

LEVELS = tuple(float(level) for level in range(1, 17))


def rising(level: float) -> Latencies:
    """TBT rises with the level, TTFT with its square."""
    return Latencies(ttft_s=(level * level,), tbt_s=(level,), tpot_s=(level,))


def slo(metric: Metric, threshold_s: float) -> Slo:
    return Slo(metric=metric, statistic="p99", threshold_s=threshold_s)


def test_bisection_finds_the_highest_level_that_holds() -> None:
    for wanted in range(1, 17):
        profiler = SloProfiler(rising, LEVELS)
        assert profiler.best((slo(Metric.TBT, wanted + 0.5),)) == wanted
        assert profiler.measured <= 5  # of 16


def test_several_objectives_at_once_are_held_by_the_worst() -> None:
    """HyGen §5.4: P99 TTFT fixed, TBT loosened: at last TTFT decides."""
    profiler = SloProfiler(rising, LEVELS)
    ttft = slo(Metric.TTFT, 50.0)
    found = [profiler.best((ttft, slo(Metric.TBT, bound))) for bound in (3.5, 6.5, 9.5, 12.5)]
    assert found == [3, 6, 7, 7]


def test_a_level_is_simulated_once_whatever_is_asked() -> None:
    seen: list[float] = []

    def measure(level: float) -> Latencies:
        seen.append(level)
        return rising(level)

    profiler = SloProfiler(measure, LEVELS)
    for bound in (4.5, 8.5, 4.5, 12.5):
        profiler.best((slo(Metric.TBT, bound),))
    assert len(seen) == len(set(seen)) == profiler.measured


def test_none_when_not_even_the_lowest_holds() -> None:
    assert SloProfiler(rising, LEVELS).best((slo(Metric.TBT, 0.5),)) is None


@pytest.mark.parametrize("levels", [(), (2.0, 1.0)])
def test_levels_must_rise(levels: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="levels"):
        SloProfiler(rising, levels)


def test_an_objective_is_needed() -> None:
    with pytest.raises(ConfigError, match="slos"):
        SloProfiler(rising, LEVELS).best(())


def test_geometric_levels_have_one_factor() -> None:
    assert geometric_levels(1.0, 8.0, 4) == pytest.approx((1, 2, 4, 8))
    with pytest.raises(ConfigError, match="levels"):
        geometric_levels(0.0, 8.0, 4)


def test_a_budget_from_the_profiler_holds_the_statistic_it_was_asked_for() -> None:
    """On a real simulation: mean TBT at 30% over online alone, and offline work still flows."""
    replica = Replica(cost=CPU_2_CORES, shape=SHAPE, policy=POLICY, eviction=LruEviction())
    requests = online(seconds=20.0)

    def latencies(budget_s: float | None) -> Latencies:
        result = run_preset(
            replica,
            "hygen" if budget_s else "sarathi",
            online=requests,
            offline=offline() if budget_s else (),
            until_s=25.0,
            static_budget_s=budget_s,
        )
        return Latencies.of(result.online)

    alone = latencies(None).statistic(Metric.TBT, "mean")
    slos = (Slo(metric=Metric.TBT, statistic="mean", threshold_s=1.3 * alone),)
    profiler = SloProfiler(latencies, geometric_levels(0.01, 0.2, 8))
    budget_s = profiler.best(slos)
    assert budget_s is not None
    assert attained(latencies(budget_s), slos) <= 1.0
    assert attained(latencies(0.2), slos) > 1.0
