"""No objective given: online traffic keeps the latency that it has alone, but for a tenth."""

from collections.abc import Callable
from dataclasses import replace
from statistics import median

import pytest

from tests.engine.sim.runs import offline, online, replica
from weir_engine.config import Metric, Policy
from weir_engine.latency.models import LatencyModel
from weir_engine.sched.budget import SloBudget, StepBudget
from weir_engine.sim.cost import CPU_2_CORES, GPU_LIKE, CostModel
from weir_engine.sim.report import Summary, summarise

SECONDS = 240.0


def budget(share: float | None) -> Callable[[LatencyModel], StepBudget]:
    return lambda model: SloBudget((), model, over_alone=share)


def simulated(
    *, cost: CostModel, rate_s: float, batch: bool, share: float | None = 0.1, seed: int = 1
) -> Summary:
    made = replace(replica(seed, slos=()), cost=cost, budget=budget(share))
    if not batch:
        made = replace(made, policy=Policy(offline_kv_blocks=0, offline_seq_slots=0))
    result = made.simulate(
        online=online(seed, rate_s=rate_s, seconds=SECONDS),
        offline=offline(seed, count=600) if batch else (),
        until_s=SECONDS + 20,
    )
    return summarise(result, from_s=20.0, to_s=SECONDS)


def mean_s(summary: Summary, metric: Metric) -> float:
    return summary.latencies.statistic(metric, "mean")


@pytest.mark.parametrize(("cost", "rate_s"), [(CPU_2_CORES, 1.5), (GPU_LIKE, 6.0)])
def test_means_stay_within_a_tenth_of_online_alone(cost: CostModel, rate_s: float) -> None:
    alone = simulated(cost=cost, rate_s=rate_s, batch=False)
    both = simulated(cost=cost, rate_s=rate_s, batch=True)
    unbound = simulated(cost=cost, rate_s=rate_s, batch=True, share=None)
    for metric in (Metric.TBT, Metric.TTFT):
        assert mean_s(both, metric) <= 1.1 * mean_s(alone, metric)
        if cost is CPU_2_CORES:  # else there is time for all of it
            assert mean_s(unbound, metric) > 1.5 * mean_s(alone, metric)
    assert both.served_tokens_s > 0.2 * unbound.served_tokens_s


def test_a_quiet_engine_is_the_batch_s_but_for_four_fixed_costs_a_step() -> None:
    made = replace(replica(slos=()), budget=budget(0.1))
    result = made.simulate(offline=offline(count=600), until_s=120.0)
    seconds = [step.ended_s - step.started_s for step in result.steps if step.started_s > 61.0]
    in_fixed_costs = median(seconds) / CPU_2_CORES.empty_step_s
    assert 3.0 < in_fixed_costs < 4.5
    assert sum(seconds) > 0.98 * (120.0 - 61.0)
