"""The fit: a non-negative solution that nothing improves, whatever the columns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir_engine.latency.features import StepShape
from weir_engine.latency.fit import fit_relative, nonnegative
from weir_engine.latency.reservoir import ShapeReservoir


@given(seed=st.integers(0, 10_000), size=st.integers(1, 8), rank=st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_the_active_set_meets_the_optimality_conditions(seed: int, size: int, rank: int) -> None:
    rng = np.random.default_rng(seed)
    half = rng.standard_normal((rank, size))
    gram = half.T @ half + 1e-4 * np.eye(size)
    moment = rng.standard_normal(size)
    solution = nonnegative(gram, moment)
    gradient = gram @ solution - moment
    assert (solution >= 0).all()
    assert (gradient > -1e-7 * (1 + np.abs(moment).max())).all()
    assert np.abs(gradient[solution > 0]).max(initial=0.0) < 1e-6


def test_a_negative_slope_in_the_data_becomes_zero_not_negative() -> None:
    x = np.linspace(1, 10, 50)
    features = np.column_stack([np.ones(50), x])
    fitted = fit_relative(features, 2.0 - 0.1 * x, np.ones(50), np.array([1.0, 0.1]))
    assert fitted[1] == 0.0
    assert 1.0 < fitted[0] < 2.0


def test_errors_count_by_their_share_not_by_their_size() -> None:
    """Short steps are not drowned by long ones: both kinds end equally far off."""
    features = np.column_stack([np.ones(100)])
    seconds = np.array([0.01] * 50 + [0.012] * 50)
    fitted = fit_relative(features, seconds, np.ones(100), np.array([0.01]))
    assert 0.0103 < fitted[0] < 0.0117


def test_the_reservoir_keeps_old_kinds_through_a_long_run_of_one() -> None:
    reservoir = ShapeReservoir(1, kinds=8, per_kind=3)
    for n in range(4):
        reservoir.add(StepShape(prefill_tokens=1 << n), (1.0,), float(n + 1))
    for i in range(100):
        reservoir.add(StepShape(prefill_tokens=1 << 10), (1.0,), 100.0 + i)
    _, seconds, weights = reservoir.rows(half_life_steps=10.0)
    assert sorted(seconds) == [1.0, 2.0, 3.0, 4.0, 197.0, 198.0, 199.0]
    assert weights.min() == 0.05


def test_the_reservoir_is_bounded_and_drops_the_kind_unseen_for_longest() -> None:
    reservoir = ShapeReservoir(1, kinds=4, per_kind=2)
    for n in range(10):
        reservoir.add(StepShape(prefill_tokens=1 << n), (1.0,), float(n))
    _, seconds, _ = reservoir.rows(half_life_steps=10.0)
    assert sorted(seconds) == [6.0, 7.0, 8.0, 9.0]
    assert len(reservoir) == 4
    assert reservoir.added == 10


def test_rows_that_count_nothing_leave_the_prior() -> None:
    features = np.column_stack([np.ones(3)])
    fitted = fit_relative(features, np.full(3, 0.02), np.zeros(3), np.array([0.01]))
    assert fitted[0] == pytest.approx(0.02)  # scaled to the rows, as where they tell nothing
