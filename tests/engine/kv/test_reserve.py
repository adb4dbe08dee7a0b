"""The threshold and the reserve as sums of blocks."""

import pytest

from weir_engine.kv.reserve import blocks_for, threshold_blocks


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_a_begun_block_is_a_block(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 16) == blocks


@pytest.mark.parametrize(
    ("demand", "threshold"), [(0.0, 100), (30.0, 70), (30.2, 69), (100.0, 0), (250.0, 0)]
)
def test_the_threshold_leaves_the_forecast_demand(demand: float, threshold: int) -> None:
    assert threshold_blocks(total_blocks=100, online_demand_blocks=demand) == threshold
