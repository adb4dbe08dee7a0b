"""Which policy holds when (design §4), and the time between engine and client."""

from __future__ import annotations

import pytest

from weir_agent import wire
from weir_agent.latency import Summary
from weir_agent.policy import (
    DemandHistory,
    Lease,
    active_policy,
    client_delays,
    forecast_blocks,
)
from weir_agent.settings import SloSetting

POLICY = wire.Policy(lease_s=10, offline_kv_blocks=60, offline_seq_slots=4, step_budget_s=0.05)


@pytest.mark.parametrize(
    ("now_s", "source", "blocks", "left_s"),
    [
        (100.0, "control_plane", 60, 10.0),
        (109.5, "control_plane", 60, 0.5),
        (110.0, "forecast", 50, 10.0),
        (119.0, "forecast", 50, 1.0),
        (120.0, "online_only", 0, None),
        (9999.0, "online_only", 0, None),
    ],
)
def test_a_lease_then_a_forecast_of_one_lease_then_online_only(
    now_s: float, source: str, blocks: int, left_s: float | None
) -> None:
    lease = Lease(policy=POLICY, sent_s=100.0)
    active = active_policy(lease, now_s, total_blocks=100, history=[50] * 30)
    assert (active.source, active.offline_kv_blocks) == (source, blocks)
    assert active.lease_s == (None if left_s is None else pytest.approx(left_s))
    assert active.offline_seq_slots == (0 if source == "online_only" else 4)


def test_without_any_policy_no_offline_work() -> None:
    assert active_policy(None, 0.0, total_blocks=100, history=[]).offline_seq_slots == 0


def test_the_forecast_never_allows_more_than_the_control_plane_did() -> None:
    active = active_policy(
        Lease(policy=POLICY, sent_s=0.0), 12.0, total_blocks=1000, history=[10] * 30
    )
    assert active.offline_kv_blocks == 60


def test_the_forecast_leaves_what_online_requests_find_again() -> None:
    lease = Lease(policy=POLICY, sent_s=0.0)
    for reused, left in ((50, 20), (90, 0)):
        active = active_policy(
            lease, 12.0, total_blocks=100, history=[30] * 30, reuse_blocks=reused
        )
        assert active.offline_kv_blocks == left


def test_the_forecast_is_mean_plus_two_sigma() -> None:
    assert forecast_blocks([10, 30] * 20) == 40
    assert forecast_blocks([]) == 0
    assert forecast_blocks([1, 1, 1, 1, 1, 1, 50]) == 50  # a short history: never below its peak


def test_history_ends_after_its_horizon() -> None:
    history = DemandHistory(horizon_s=100)
    for second in range(300):
        history.add(float(second), second)
    assert history.values() == list(range(200, 300))


def test_a_beat_beside_the_regular_one_is_no_sample_more() -> None:
    """A new policy of the control plane makes the heart beat at once."""
    history = DemandHistory(horizon_s=100)
    for second in range(100):
        history.add(float(second), second)
        history.add(second + 0.5, 200 if second == 40 else 0)
    assert history.values() == [200 if second == 40 else second for second in range(100)]


def test_delays_are_the_difference_of_the_slos_own_statistic() -> None:
    slos = (
        SloSetting(metric="tbt", statistic="p99", threshold_s=0.1),
        SloSetting(metric="tbt", statistic="mean", threshold_s=0.1),
        SloSetting(metric="ttft", statistic="mean", threshold_s=0.1),
        SloSetting(metric="tpot", statistic="mean", threshold_s=0.1),
    )
    client = {
        "tbt": Summary(count=50, mean_s=0.012, p50_s=0.02, p90_s=0.03, p99_s=0.06),
        "ttft": Summary(count=50, mean_s=0.9, p50_s=0.9, p90_s=0.9, p99_s=0.9),
        "tpot": Summary(count=5, mean_s=0.9),
    }
    engine = {
        "tbt": {"count": 50.0, "p99_s": 0.05, "mean_s": 0.01},
        "ttft": {"count": 50.0, "mean_s": 0.1},
        "tpot": {"count": 50.0, "mean_s": 0.1},
    }
    delays = client_delays(slos, client, engine)
    assert delays == {
        "tbt_p99": pytest.approx(0.01),
        "tbt_mean": pytest.approx(0.002),
        "ttft_mean": 0.05,  # never above half the threshold
    }
