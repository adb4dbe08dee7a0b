"""The order cut for replicas: each part has about the root's density, and no place is lost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir_engine.errors import ConfigError
from weir_engine.pool.replica_split import EndSlices, PlacedWork, split_across, steal


def _work(places: int, *, families: int = 0) -> PlacedWork:
    """Density falls evenly from about 8 to about 0.1; equal memory-bound time at each place."""
    density = np.geomspace(8.0, 0.1, places) if places else np.zeros(0)
    family = np.arange(places) * families // max(places, 1) if families else np.arange(places)
    return PlacedWork(compute_s=density, memory_s=np.ones(places), family=family)


def _all_places(parts: tuple[EndSlices, ...]) -> list[int]:
    return sorted(int(place) for part in parts for place in part.places())


@settings(deadline=None)
@given(places=st.integers(0, 300), replicas=st.integers(1, 7), families=st.integers(0, 12))
def test_every_place_is_in_one_part(places: int, replicas: int, families: int) -> None:
    parts = split_across(_work(places, families=families), [1.0] * replicas)
    assert len(parts) == replicas
    assert _all_places(parts) == list(range(places))


@settings(deadline=None)
@given(replicas=st.integers(2, 8))
def test_parts_have_the_roots_density_and_equal_work(replicas: int) -> None:
    work = _work(4_000)
    root = float(work.compute_s.sum() / work.memory_s.sum())
    for part in split_across(work, [1.0] * replicas):
        compute_s, memory_s = work.sums(part)
        assert compute_s / memory_s == pytest.approx(root, rel=0.02)
        assert memory_s == pytest.approx(4_000 / replicas, rel=0.02)


def test_a_replica_gets_work_by_its_weight() -> None:
    work = _work(3_000)
    big, small = split_across(work, [2.0, 1.0])
    assert work.sums(big)[1] == pytest.approx(2_000, rel=0.02)
    assert work.sums(small)[0] == pytest.approx(float(work.compute_s.sum()) / 3, rel=0.02)


@settings(deadline=None)
@given(share=st.floats(0.1, 0.9), replicas=st.integers(1, 4))
def test_stealing_keeps_the_density_on_both_sides(share: float, replicas: int) -> None:
    work = _work(4_000)
    victim = split_across(work, [1.0] * replicas)[0]
    whole = work.sums(victim)
    kept, stolen = steal(work, victim, share=share)
    assert _all_places((kept, stolen)) == _all_places((victim,))
    for part, its_share in ((kept, 1 - share), (stolen, share)):
        compute_s, memory_s = work.sums(part)
        assert compute_s / memory_s == pytest.approx(whole[0] / whole[1], rel=0.05)
        assert memory_s == pytest.approx(its_share * whole[1], rel=0.05, abs=2)


def test_the_thief_takes_what_the_owner_would_reach_last() -> None:
    work = _work(100)
    victim = EndSlices(left=range(30), right=range(60, 100))
    kept, stolen = steal(work, victim)
    assert kept.left.start == 0
    assert kept.right.stop == 100
    assert stolen.left.stop == 30
    assert stolen.right.start == 60


def test_a_cut_moves_to_the_end_of_a_prefix_family() -> None:
    work = _work(1_000, families=100)  # ten places each
    parts = split_across(work, [1.0] * 3)
    bounds = {part.left.stop for part in parts[:2]} | {part.right.start for part in parts[:2]}
    assert all(bound % 10 == 0 for bound in bounds)


def test_long_outputs_larger_than_a_slice_leave_no_replica_without_work() -> None:
    """One family of 900 exams without memory-bound work, 20 long outputs that have nearly all."""
    family = np.r_[np.zeros(900, dtype=np.int64), np.ones(300, dtype=np.int64), np.full(20, 2)]
    work = PlacedWork(
        compute_s=np.r_[np.full(900, 0.1), np.full(300, 0.5), np.full(20, 0.5)],
        memory_s=np.r_[np.zeros(900), np.full(300, 0.1), np.linspace(2.0, 30.0, 20)],
        family=family,
    )
    parts = split_across(work, [1.0] * 16)
    assert _all_places(parts) == list(range(len(work)))
    fair = float(work.compute_s.sum()) / 16
    assert [work.sums(part)[0] for part in parts] == [pytest.approx(fair, rel=0.1)] * 16
    longest = max(work.sums(part)[1] for part in parts)
    assert longest <= 30.0 + 0.5 * float(work.memory_s.sum()) / 16


def test_work_without_outputs_is_split_too() -> None:
    work = PlacedWork(compute_s=np.ones(40), memory_s=np.zeros(40), family=np.arange(40))
    assert [len(part) for part in split_across(work, [1.0] * 4)] == [10] * 4
    kept, stolen = steal(work, EndSlices(left=range(40), right=range(40, 40)))
    assert (kept.left, stolen.left) == (range(20), range(20, 40))


def test_bad_weights_and_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="weights"):
        split_across(_work(5), [1.0, 0.0])
    with pytest.raises(ConfigError, match="weights"):
        split_across(_work(5), [])
    with pytest.raises(ConfigError, match="share"):
        steal(_work(5), EndSlices(left=range(5), right=range(5, 5)), share=2.0)
    with pytest.raises(ConfigError, match="one of each"):
        PlacedWork(compute_s=np.ones(2), memory_s=np.ones(3), family=np.arange(2))


def test_empty_slices_stay_empty() -> None:
    nothing = EndSlices(left=range(0), right=range(0))
    kept, stolen = steal(_work(0), nothing)
    assert len(kept) == len(stolen) == 0
