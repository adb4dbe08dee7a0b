"""One TPOT a step, and no offline work past the moment a first token is due."""

import pytest

from weir_engine.config import Metric, Slo
from weir_engine.errors import ConfigError
from weir_engine.latency.models import ModulewiseModel
from weir_engine.sched.account import OnlineLoad
from weir_engine.sched.tpot_budget import TpotBudget

TTFT_1S = Slo(metric=Metric.TTFT, statistic="p90", threshold_s=1.0)
TPOT_100MS = Slo(metric=Metric.TPOT, statistic="p90", threshold_s=0.1)


def test_online_prefill_and_offline_work_share_one_tpot() -> None:
    model = ModulewiseModel()
    budget = TpotBudget((TTFT_1S, TPOT_100MS), model)
    load = OnlineLoad(now_s=5.0, decoders=3)
    assert budget.prefill_limit(load) == model.within(0.1, 0.9) <= 0.1
    limit = budget.step_limit(load)
    assert (limit.seconds, limit.reason) == (model.within(0.1, 0.9), "tpot")
    assert budget.accounts == ()


def test_a_prompt_that_is_nearly_due_shortens_the_step_for_offline_work() -> None:
    budget = TpotBudget((TTFT_1S, TPOT_100MS), ModulewiseModel())
    early = budget.step_limit(OnlineLoad(now_s=5.0, prefills=1, earliest_arrival_s=4.8))
    assert early.reason == "tpot"
    near = budget.step_limit(OnlineLoad(now_s=5.0, prefills=1, earliest_arrival_s=4.03))
    assert near.seconds == pytest.approx(0.03)
    assert near.reason == "ttft-prefill"
    late = budget.step_limit(OnlineLoad(now_s=5.0, prefills=1, earliest_arrival_s=3.0))
    assert late.seconds == 0.0


def test_it_needs_an_objective_on_tpot() -> None:
    with pytest.raises(ConfigError, match="tpot"):
        TpotBudget((TTFT_1S,), ModulewiseModel())
