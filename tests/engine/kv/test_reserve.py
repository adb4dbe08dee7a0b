"""The threshold and the reserve as sums of blocks."""

import pytest

from weir_engine.kv.reserve import (
    admission_blocks,
    blocks_for,
    new_blocks,
    offline_room_blocks,
    shortage_blocks,
    threshold_blocks,
)
from weir_engine.kv.view import PrefixHit


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_a_begun_block_is_a_block(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 16) == blocks


def test_a_running_request_takes_only_what_it_lacks() -> None:
    def lacking(held: int) -> int:
        return new_blocks(held_blocks=held, computed_tokens=30, new_tokens=5, block_size_tokens=16)

    assert [lacking(2), lacking(3), lacking(4)] == [1, 0, 0]


def test_an_admission_costs_its_fresh_blocks_and_the_free_ones_it_hits() -> None:
    hit = PrefixHit(tokens=48, free_blocks=2)  # the third is held by somebody
    assert admission_blocks(hit=hit, new_tokens=17, block_size_tokens=16) == 4


@pytest.mark.parametrize(
    ("threshold", "pinned", "free", "online_need", "room"),
    [
        (10, 4, 20, 0, 6),  # bound by the threshold
        (10, 4, 5, 2, 3),  # bound by what online leaves
        (3, 4, 20, 0, 0),  # lowered: no growth, and nothing to give back
        (10, 0, 2, 5, 0),  # online takes all
    ],
)
def test_offline_room(threshold: int, pinned: int, free: int, online_need: int, room: int) -> None:
    assert (
        offline_room_blocks(
            threshold_blocks=threshold,
            offline_only_blocks=pinned,
            free_blocks=free,
            online_need_blocks=online_need,
        )
        == room
    )


def test_offline_gives_back_only_what_online_lacks() -> None:
    assert shortage_blocks(online_need_blocks=5, free_blocks=3) == 2
    assert shortage_blocks(online_need_blocks=3, free_blocks=5) == 0


@pytest.mark.parametrize(
    ("demand", "threshold"), [(0.0, 100), (30.0, 70), (30.2, 69), (100.0, 0), (250.0, 0)]
)
def test_the_threshold_leaves_the_forecast_demand(demand: float, threshold: int) -> None:
    assert threshold_blocks(total_blocks=100, online_demand_blocks=demand) == threshold
