"""The forecast: what each method says of a known past, and which one is used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir_controlplane.forecast.choose import COVERAGE_TARGET, Score, forecast, ranking, score_all
from weir_controlplane.forecast.demand import BUCKET_S, COARSE_BUCKET_S, Bucket, Demand
from weir_controlplane.forecast.methods import (
    DAY_S,
    History,
    MeanSigma,
    Quantile,
    Seasonal,
    default_methods,
)
from weir_controlplane.forecast.series import PodHistory, Series

NOW_S = 20 * DAY_S * 1.0
NO_DAYS = Demand.of([])


def recent(values: list[int], *, end_s: float = NOW_S) -> Demand:
    """Buckets of one sample each that end at ``end_s``."""
    start_s = end_s - BUCKET_S * len(values)
    return Demand.of(
        Bucket.of(start_s + BUCKET_S * place, value) for place, value in enumerate(values)
    )


def test_mean_sigma_is_the_mean_plus_two_deviations_of_the_samples() -> None:
    """Echo §5.3 by hand: samples 10, 10, 30, 30 have mean 20 and deviation 10."""
    history = History(recent=recent([10, 10, 30, 30] * 5), days=NO_DAYS)
    assert MeanSigma().forecast_blocks(history, NOW_S) == pytest.approx(40.0)
    assert MeanSigma(sigmas=0).forecast_blocks(history, NOW_S) == pytest.approx(20.0)


def test_mean_sigma_counts_samples_not_buckets() -> None:
    """A bucket of nine samples weighs nine times one of a single sample."""
    busy = Bucket.of(NOW_S - BUCKET_S, 100)
    for _ in range(8):
        busy = busy.plus(Bucket.of(NOW_S - BUCKET_S, 100))
    history = History(recent=Demand.of([Bucket.of(NOW_S - 2 * BUCKET_S, 0), busy]), days=NO_DAYS)
    method = MeanSigma(sigmas=0, min_buckets=2)
    assert method.forecast_blocks(history, NOW_S) == pytest.approx(90.0)


def test_the_window_slides_and_the_future_is_not_seen() -> None:
    old, now = [900] * 30, [10] * 360
    history = History(recent=recent(old + now), days=NO_DAYS)
    assert MeanSigma().forecast_blocks(history, NOW_S) == pytest.approx(10.0)
    later = History(recent=recent(now + [900] * 30, end_s=NOW_S + 300), days=NO_DAYS)
    assert MeanSigma().forecast_blocks(later, NOW_S) == pytest.approx(10.0)


def test_quantile_covers_its_share_of_peaks_whatever_their_distribution() -> None:
    values = [10] * 90 + [500] * 10
    history = History(recent=recent(values), days=NO_DAYS)
    assert Quantile(quantile=0.98).forecast_blocks(history, NOW_S) == 500
    assert Quantile(quantile=0.9).forecast_blocks(history, NOW_S) == 10


def test_a_short_past_gives_no_forecast() -> None:
    history = History(recent=recent([5] * 11), days=NO_DAYS)
    for method in default_methods():
        assert method.forecast_blocks(history, NOW_S) is None
    assert forecast(default_methods(), history, NOW_S, total_blocks=100, scores=()) is None


def days_with_a_morning_peak(days: int) -> Demand:
    """10 min buckets: 100 blocks, and 800 in the hour after ``NOW_S``'s time of day."""
    buckets = []
    for day in range(1, days + 1):
        for place in range(DAY_S // COARSE_BUCKET_S):
            at_s = NOW_S - day * DAY_S + place * COARSE_BUCKET_S
            blocks = 800 if place < 6 else 100
            buckets.append(Bucket.of(at_s, blocks, length_s=COARSE_BUCKET_S))
    return Demand.of(buckets)


def test_seasonal_sees_the_peak_that_comes_every_day_at_this_time() -> None:
    history = History(recent=recent([100] * 360), days=days_with_a_morning_peak(3))
    assert Seasonal().forecast_blocks(history, NOW_S) == pytest.approx(800.0)
    assert MeanSigma().forecast_blocks(history, NOW_S) == pytest.approx(100.0)


def test_seasonal_scales_by_how_today_compares() -> None:
    history = History(recent=recent([150] * 360), days=days_with_a_morning_peak(3))
    assert Seasonal().forecast_blocks(history, NOW_S) == pytest.approx(1200.0)
    wild = History(recent=recent([5000] * 360), days=days_with_a_morning_peak(3))
    assert Seasonal().forecast_blocks(wild, NOW_S) == pytest.approx(1600.0)  # at most doubled


def test_scores_are_coverage_and_waste_over_the_last_hour() -> None:
    flat = History(recent=recent([100] * 720), days=NO_DAYS)
    scores = {
        item.method: item for item in score_all(default_methods(), flat, NOW_S, total_blocks=1000)
    }
    assert set(scores) == {"mean_sigma", "quantile"}
    assert scores["mean_sigma"].coverage == 1.0
    assert scores["mean_sigma"].waste == pytest.approx(0.0)
    assert scores["mean_sigma"].spans == 30
    spikes = History(recent=recent(([10] * 11 + [500]) * 60), days=NO_DAYS)
    told = {
        item.method: item for item in score_all(default_methods(), spikes, NOW_S, total_blocks=1000)
    }
    assert told["mean_sigma"].coverage == 0.0  # mean 51, deviation 135: a spike is out of reach
    assert told["quantile"].coverage == 1.0
    chosen = forecast(
        default_methods(), spikes, NOW_S, total_blocks=1000, scores=tuple(told.values())
    )
    assert chosen is not None
    assert (chosen.method, chosen.online_kv_blocks) == ("quantile", 500)


def test_of_methods_that_cover_enough_the_least_wasteful_is_used() -> None:
    methods = default_methods()
    scores = [
        Score(method="mean_sigma", coverage=1.0, waste=0.4, spans=30),
        Score(method="quantile", coverage=COVERAGE_TARGET, waste=0.2, spans=30),
        Score(method="seasonal", coverage=0.9, waste=0.0, spans=30),
    ]
    names = [method.name for method in ranking(methods, scores)]
    assert names == ["quantile", "mean_sigma", "seasonal"]
    assert ranking(methods, [])[0].name == "mean_sigma"


def test_a_method_that_was_spared_the_bursts_is_not_better() -> None:
    """Seasonal knows the last 20 minutes alone, between two bursts of those every 25."""
    values = [100] * 720
    for back_s in range(1400, 7200, 1500):
        first = 720 - back_s // BUCKET_S
        values[first : first + 10] = [700] * 10
    begun_s = int(NOW_S - DAY_S + 3600 - 1200)
    day = range(begun_s, begun_s + 3600, COARSE_BUCKET_S)
    yesterday = Demand.of(Bucket.of(at_s, 100, length_s=COARSE_BUCKET_S) for at_s in day)
    history = History(recent=recent(values), days=yesterday)
    scores = score_all(default_methods(), history, NOW_S, total_blocks=1000)
    assert {item.method: item.spans for item in scores}["seasonal"] < 10
    chosen = forecast(default_methods(), history, NOW_S, total_blocks=1000, scores=scores)
    assert chosen is not None
    assert chosen.online_kv_blocks == 700  # the next one comes in less than two minutes


@given(
    values=st.lists(st.integers(0, 3000), min_size=12, max_size=80),
    total=st.integers(1, 2000),
)
def test_a_forecast_stays_within_the_pod(values: list[int], total: int) -> None:
    history = History(recent=recent(values), days=NO_DAYS)
    chosen = forecast(default_methods(), history, NOW_S, total_blocks=total, scores=())
    assert chosen is not None
    assert 0 <= chosen.online_kv_blocks <= total


@given(
    samples=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 100)), min_size=1, max_size=150),
    cut=st.integers(0, 150),
)
@settings(max_examples=60)
def test_rule_13_samples_seen_by_two_replicas_add_up(
    samples: list[tuple[int, int]], cut: int
) -> None:
    """§8.13: whichever replica saw a sample, the history is the same."""
    buckets = [Bucket.of(NOW_S + at, blocks) for at, blocks in samples]
    whole = Demand.of(buckets)
    halves = [Demand.of(buckets[:cut]), Demand.of(buckets[cut:])]
    series = Series(BUCKET_S, 3600)
    for half in halves:
        for place in range(len(half)):
            series.add(
                Bucket(
                    start_s=int(half.start_s[place]),
                    samples=int(half.samples[place]),
                    sum_blocks=float(half.sum_blocks[place]),
                    sum_sq_blocks=float(half.sum_sq_blocks[place]),
                    max_blocks=int(half.max_blocks[place]),
                )
            )
    merged = series.demand()
    for name in ("start_s", "samples", "sum_blocks", "sum_sq_blocks", "max_blocks"):
        assert getattr(merged, name) == pytest.approx(getattr(whole, name)), name


def test_a_history_stays_bounded_and_keeps_the_newest() -> None:
    pod = PodHistory()
    for second in range(0, 5 * 3600, BUCKET_S):
        pod.recent.add(Bucket.of(NOW_S + second, second))
    kept = pod.history().recent
    assert len(kept) == 720
    assert kept.start_s[-1] == NOW_S + 5 * 3600 - BUCKET_S
    assert np.all(np.diff(kept.start_s) == BUCKET_S)
    pod.recent.add(Bucket.of(NOW_S, 1))  # older than all that is kept
    assert len(pod.history().recent) == 720


def test_buckets_of_different_times_are_not_added() -> None:
    with pytest.raises(ValueError, match="cannot be added"):
        Bucket.of(0.0, 1).plus(Bucket.of(10.0, 1))
