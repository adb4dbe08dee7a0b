"""The policy: bounded, monotone, conservative where nothing is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weir_controlplane.forecast.choose import Forecast
from weir_controlplane.policy.decide import PodKv, PolicyLimits, decide

BLOCKS = st.integers(0, 5000)
FRACTIONS = st.floats(0, 1)


def expects(blocks: int) -> Forecast:
    return Forecast(method="mean_sigma", online_kv_blocks=blocks, scores=())


def pod(
    total: int = 1000, *, online: int = 0, reused: int = 0, offline: int = 0, running: int = 0
) -> PodKv:
    return PodKv(
        total_blocks=total,
        online_kv_blocks=online,
        online_reuse_blocks=reused,
        offline_kv_blocks=offline,
        offline_running=running,
    )


def test_the_threshold_is_what_the_forecast_leaves() -> None:
    policy = decide(pod(online=100), expects(300), PolicyLimits())
    assert (policy.offline_kv_blocks, policy.forecast_blocks) == (700, 300)
    assert policy.method == "mean_sigma"
    assert policy.step_budget_s is None  # the engine decides from its SLOs
    assert policy.lease_s > 0


def test_demand_above_the_forecast_counts_as_it_is() -> None:
    assert decide(pod(online=800), expects(300), PolicyLimits()).offline_kv_blocks == 200


def test_histories_that_come_back_are_kept_up_to_a_share() -> None:
    limits = PolicyLimits(max_reuse_fraction=0.5)
    assert decide(pod(online=100, reused=400), expects(300), limits).offline_kv_blocks == 300
    assert decide(pod(online=100, reused=900), expects(300), limits).offline_kv_blocks == 200


def test_a_fresh_pod_gets_a_conservative_share() -> None:
    fresh = decide(pod(), None, PolicyLimits(fresh_fraction=0.25))
    assert (fresh.offline_kv_blocks, fresh.method) == (250, "fresh")
    busy = decide(pod(online=900), None, PolicyLimits(fresh_fraction=0.25))
    assert busy.offline_kv_blocks == 100


def test_a_fresh_pod_gets_no_more_than_the_largest_share() -> None:
    limits = PolicyLimits(max_offline_fraction=0.1, fresh_fraction=0.3)
    assert decide(pod(), None, limits).offline_kv_blocks == 100
    assert decide(pod(), expects(0), limits).offline_kv_blocks == 100


def test_without_blocks_there_are_no_slots() -> None:
    policy = decide(pod(online=1000), expects(1000), PolicyLimits())
    assert (policy.offline_kv_blocks, policy.offline_seq_slots) == (0, 0)


def test_slots_follow_the_size_of_the_sequences_that_run() -> None:
    limits = PolicyLimits(max_offline_slots=64)
    assert decide(pod(), expects(200), limits).offline_seq_slots == 64
    large = pod(offline=800, running=4)  # 200 blocks each: 800 hold about eight half-sized
    assert decide(large, expects(200), limits).offline_seq_slots == 8


def test_an_operator_who_allows_no_slots_stops_what_runs_too() -> None:
    none = PolicyLimits(max_offline_slots=0)
    assert decide(pod(), expects(0), none).offline_seq_slots == 0
    assert decide(pod(offline=500, running=5), expects(0), none).offline_seq_slots == 0


@given(
    total=BLOCKS,
    online=BLOCKS,
    offline=BLOCKS,
    running=st.integers(0, 300),
    forecast=st.none() | BLOCKS,
    limits=st.builds(
        PolicyLimits,
        max_offline_fraction=FRACTIONS,
        fresh_fraction=FRACTIONS,
        max_offline_slots=st.integers(0, 512),
    ),
)
def test_never_negative_never_above_the_total(
    total: int,
    online: int,
    offline: int,
    running: int,
    forecast: int | None,
    limits: PolicyLimits,
) -> None:
    kv = pod(total, online=online, offline=offline, running=running)
    policy = decide(kv, None if forecast is None else expects(forecast), limits)
    assert 0 <= policy.offline_kv_blocks <= total
    share = limits.fresh_fraction if forecast is None else limits.max_offline_fraction
    assert policy.offline_kv_blocks <= total * share
    assert policy.offline_kv_blocks + min(online, total) <= total
    assert 0 <= policy.offline_seq_slots <= limits.max_offline_slots


@given(
    total=BLOCKS,
    lower=BLOCKS,
    more=BLOCKS,
    online=BLOCKS,
    more_online=BLOCKS,
    running=st.integers(0, 300),
)
def test_more_demand_never_gives_offline_more(
    total: int, lower: int, more: int, online: int, more_online: int, running: int
) -> None:
    calm = decide(
        pod(total, online=online, offline=10, running=running), expects(lower), PolicyLimits()
    )
    busy = decide(
        pod(total, online=online + more_online, offline=10, running=running),
        expects(lower + more),
        PolicyLimits(),
    )
    assert busy.offline_kv_blocks <= calm.offline_kv_blocks
    assert busy.offline_seq_slots <= calm.offline_seq_slots
