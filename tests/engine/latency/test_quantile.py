"""Residual quantiles: they cover the share of steps that they promise, at every size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir_engine.errors import ConfigError
from weir_engine.latency.quantile import ResidualQuantiles


def heavy(rng: np.random.Generator, predicted_s: float) -> float:
    """Noise that is wide for short steps and narrow for long ones, with a tail."""
    sigma = 0.25 if predicted_s < 0.02 else 0.05
    stretch = 1 + float(rng.standard_exponential()) if rng.random() < 0.03 else 1.0
    return predicted_s * float(rng.lognormal(0.0, sigma)) * stretch


@pytest.mark.parametrize("q", [0.8, 0.9, 0.95, 0.99])
def test_coverage_holds_for_short_and_for_long_steps(q: float) -> None:
    rng = np.random.default_rng(4)
    quantiles = ResidualQuantiles()
    covered: dict[bool, list[bool]] = {True: [], False: []}
    widths: dict[bool, list[float]] = {True: [], False: []}
    for i in range(5000):
        predicted_s = float(rng.uniform(0.008, 0.016) if i % 2 else rng.uniform(0.06, 0.12))
        actual_s = heavy(rng, predicted_s)
        if i > 1000:
            high_s = quantiles.high(predicted_s, q)
            covered[predicted_s < 0.02].append(actual_s <= high_s)
            widths[predicted_s < 0.02].append(high_s / predicted_s)
        quantiles.add(predicted_s, actual_s)
    for short in (True, False):
        assert q - 0.02 <= float(np.mean(covered[short])) <= min(q + 0.05, 1.0)
    if q <= 0.95:  # beyond, the common tail hides the difference
        assert float(np.mean(widths[True])) > 1.15 * float(np.mean(widths[False]))


def test_a_machine_that_turns_noisy_is_believed_within_a_few_hundred_steps() -> None:
    rng = np.random.default_rng(2)
    quantiles = ResidualQuantiles()
    for _ in range(2000):
        quantiles.add(0.05, 0.05 * float(rng.lognormal(0.0, 0.01)))
    calm_s = quantiles.high(0.05, 0.95)
    for _ in range(400):
        quantiles.add(0.05, 0.05 * float(rng.lognormal(0.0, 0.3)))
    assert calm_s < 0.053
    assert quantiles.high(0.05, 0.95) == pytest.approx(0.05 * np.exp(1.645 * 0.3), rel=0.15)


@pytest.mark.parametrize("slo_s", [0.04, 0.05, 0.06, 0.07])
def test_one_pause_does_not_shorten_packed_steps_for_good(slo_s: float) -> None:
    """Steps as long as a 99th percentile of TBT allows: none is longer, so none says better."""
    rng = np.random.default_rng(5)
    quantiles = ResidualQuantiles()

    def packed(steps: int) -> float:
        limit_s = 0.0
        for _ in range(steps):
            limit_s = max(quantiles.within(slo_s, 0.9965), slo_s / 2)
            quantiles.add(limit_s, limit_s * float(rng.lognormal(0.0, 0.02)))
        return limit_s

    before_s = packed(1_000)
    quantiles.add(before_s, 2.0)
    assert packed(300) < 0.9 * before_s
    assert packed(10_000) == pytest.approx(before_s, rel=0.03)


def test_a_pause_in_a_short_step_is_seconds_and_no_share_of_longer_ones() -> None:
    """The first steps of an engine are short, and its machine pauses while it starts."""
    rng = np.random.default_rng(7)
    paused, calm = ResidualQuantiles(), ResidualQuantiles()
    for number in range(300):
        seconds = 0.01 * float(rng.lognormal(0.0, 0.05))
        calm.add(0.01, seconds)
        paused.add(0.01, seconds + (0.03 if number in {40, 90} else 0.0))

    def over_s(quantiles: ResidualQuantiles, predicted_s: float) -> float:
        return quantiles.high(predicted_s, 0.9965) - predicted_s

    assert over_s(paused, 0.01) > 0.02  # a step like those may meet another
    assert over_s(paused, 0.2) < over_s(calm, 0.2) + 0.03
    assert over_s(paused, 0.2) > over_s(calm, 0.2)


def test_noise_that_grows_with_steps_is_a_share_of_longer_ones() -> None:
    rng = np.random.default_rng(8)
    quantiles = ResidualQuantiles()
    for _ in range(512):
        quantiles.add(0.01, 0.01 * float(rng.lognormal(0.0, 0.3)))
    assert quantiles.high(0.2, 0.99) / 0.2 == pytest.approx(np.exp(2.33 * 0.3), rel=0.2)


def test_a_saved_pause_is_no_older_than_all_that_was_saved_with_it() -> None:
    """More steps than a size may be without are read in one go."""
    saved = {str(bucket): [1.0] * 255 + [8.0 if bucket == 0 else 1.1] for bucket in range(20)}
    assert ResidualQuantiles.from_state(saved).state() == saved


@given(
    steps=st.lists(st.tuples(st.floats(1e-5, 100), st.floats(0.01, 50)), max_size=80),
    q=st.floats(0.51, 0.995),
    low=st.floats(1e-6, 100),
    more=st.floats(1e-6, 10),
)
@settings(max_examples=150, deadline=None)
def test_longer_steps_never_get_a_lower_bound_and_limits_invert(
    steps: list[tuple[float, float]], q: float, low: float, more: float
) -> None:
    quantiles = ResidualQuantiles()
    for predicted_s, ratio in steps:
        quantiles.add(predicted_s, predicted_s * ratio)
    assert quantiles.high(low + more, q) >= quantiles.high(low, q)
    assert quantiles.high(quantiles.within(low, q), q) == pytest.approx(low, rel=1e-9)


def test_before_any_step_the_guard_is_a_moderate_spread() -> None:
    quantiles = ResidualQuantiles()
    assert 1.1 < quantiles.high(0.05, 0.95) / 0.05 < 1.3
    assert quantiles.high(0.05, 0.5) == 0.05
    assert quantiles.within(0.05, 0.5) == 0.05


def test_a_quantile_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="q is 1"):
        ResidualQuantiles().high(0.05, 1.0)


@pytest.mark.parametrize("steps", [1, 5, 16, 17, 40])
def test_steps_count_from_the_moment_they_are_added(steps: int) -> None:
    quantiles = ResidualQuantiles()
    for number in range(steps):
        quantiles.add(0.01, 0.02 + 0.0001 * number)
    again = ResidualQuantiles.from_state(quantiles.state())
    asked_first = ResidualQuantiles()
    for number in range(steps):
        asked_first.add(0.01, 0.02 + 0.0001 * number)
    assert sum(map(len, quantiles.state().values())) == steps
    assert asked_first.high(0.01, 0.9) == again.high(0.01, 0.9) > 0.0115


@pytest.mark.parametrize(
    ("saved", "named"),
    [
        ({"33": [1.0]}, "bucket '33'"),
        ({"²": [1.0]}, "bucket '²'"),
        ({"-1": [1.0]}, "bucket '-1'"),
        ({"3": [1.0, 0.0]}, r"residuals\[3\] has 0.0"),
    ],
)
def test_a_saved_profile_that_cannot_be_is_refused(
    saved: dict[str, list[float]], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        ResidualQuantiles.from_state(saved)
