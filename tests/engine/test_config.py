"""What an engine and its objectives cannot be, each refused by the name of its field."""

import math

import pytest

from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.errors import ConfigError


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_an_objective_is_of_seconds_above_zero(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"slo\.threshold_s is .*: give seconds above 0"):
        Slo(metric=Metric.TBT, statistic="mean", threshold_s=seconds)
    with pytest.raises(ConfigError, match=r"slo\.reference_s is .*: give seconds above 0, or"):
        Slo(metric=Metric.TBT, statistic="mean", threshold_s=1.0, reference_s=seconds)


@pytest.mark.parametrize("statistic", ["p", "p9", "p100", "p9²", "P99", "median"])
def test_an_objective_is_of_a_mean_or_a_percentile_from_half_up(statistic: str) -> None:
    with pytest.raises(ConfigError, match="give 'mean' or 'p50' to 'p99'"):
        Slo(metric=Metric.TBT, statistic=statistic, threshold_s=1.0)


@pytest.mark.parametrize(
    "field",
    ["block_size_tokens", "total_blocks", "max_batched_tokens", "max_seqs", "max_model_len_tokens"],
)
def test_an_engine_has_one_of_everything(field: str) -> None:
    shape = {
        "block_size_tokens": 16,
        "total_blocks": 100,
        "max_batched_tokens": 512,
        "max_seqs": 8,
        "max_model_len_tokens": 1024,
    }
    with pytest.raises(ConfigError, match=rf"engine\.{field} is 0: give 1 or more"):
        EngineShape(**shape | {field: 0})


def test_a_policy_grants_nothing_below_zero() -> None:
    with pytest.raises(ConfigError, match=r"offline_kv_blocks and .* got -1 and 0"):
        Policy(offline_kv_blocks=-1, offline_seq_slots=0)
    with pytest.raises(ConfigError, match=r"policy\.step_budget_s is -0\.1: give 0 or more"):
        Policy(offline_kv_blocks=0, offline_seq_slots=0, step_budget_s=-0.1)
