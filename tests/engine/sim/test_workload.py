"""Workloads: seeded, of the promised rate, with prefixes that hash as they are shared."""

from itertools import pairwise

import numpy as np
import pytest

from weir_engine.errors import ConfigError, InvariantError
from weir_engine.sim.clock import VirtualClock
from weir_engine.sim.cost import CPU_2_CORES, GPU_LIKE, CostModel, Part
from weir_engine.sim.events import Arrivals
from weir_engine.sim.hashes import BlockHasher
from weir_engine.sim.workload import (
    Documents,
    Lengths,
    Segment,
    Turns,
    bursty_times,
    conversations,
    document_questions,
    online_from_rows,
    online_requests,
    poisson_times,
)

FIXED = Lengths(median=10, sigma=0.0)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_poisson_and_bursty_arrivals_have_the_same_rate_and_not_the_same_spread() -> None:
    calm = poisson_times(rng(), rate_s=5.0, duration_s=4000.0)
    wild = bursty_times(rng(), rate_s=5.0, duration_s=4000.0, burst=5.0, period_s=20.0)
    for times in (calm, wild):
        assert times == sorted(times)
        assert len(times) == pytest.approx(20_000, rel=0.06)
        assert times[0] >= 0
        assert times[-1] < 4000
    counts = [np.histogram(times, bins=800)[0] for times in (calm, wild)]
    assert float(np.var(counts[0]) / np.mean(counts[0])) == pytest.approx(1.0, abs=0.2)
    assert float(np.var(counts[1]) / np.mean(counts[1])) > 3


def test_lengths_stay_within_their_range_and_around_their_median() -> None:
    draw = rng(3)
    lengths = Lengths(median=100, sigma=1.0, low=20, high=400)
    drawn = [lengths.draw(draw) for _ in range(4000)]
    assert min(drawn) == 20
    assert max(drawn) == 400
    assert float(np.median(drawn)) == pytest.approx(100, rel=0.06)


def test_the_same_seed_gives_the_same_requests() -> None:
    def made(seed: int) -> object:
        return online_requests(
            rng(seed), [0.0, 1.0], prompt=Lengths(median=50, sigma=1), output=FIXED
        )

    assert made(1) == made(1)
    assert made(1) != made(2)


def test_questions_of_a_document_share_exactly_its_full_blocks() -> None:
    documents = Documents(
        count=3, questions=4, document=Lengths(median=100, sigma=0), question=FIXED, output=FIXED
    )
    specs = document_questions(rng(), documents)
    hasher = BlockHasher(16)
    hashes = {spec.id: hasher.hashes(spec.segments) for spec in specs}
    assert len(specs) == 12
    for one in specs:
        for other in specs:
            pairs = zip(hashes[one.id], hashes[other.id], strict=False)
            shared = sum(a == b for a, b in pairs)
            if one.id == other.id:
                assert shared == 110 // 16
            else:
                assert shared == (100 // 16 if one.group == other.group else 0)


def test_each_turn_of_a_conversation_repeats_what_came_before() -> None:
    turns = Turns(count=4, gap_s=5.0, message=FIXED, output=FIXED, longest_tokens=1000)
    specs = conversations(rng(), [0.0, 1.0], turns=turns)
    assert [spec.arrival_s for spec in specs] == sorted(spec.arrival_s for spec in specs)
    one = [spec for spec in specs if spec.group == "conversation-0"]
    assert [spec.prompt_tokens for spec in one] == [10, 30, 50, 70]
    for before, after in pairwise(one):
        assert after.segments[: len(before.segments)] == before.segments


def test_conversations_end_before_the_model_does() -> None:
    turns = Turns(count=9, gap_s=1.0, message=FIXED, output=FIXED, longest_tokens=45)
    assert max(spec.prompt_tokens for spec in conversations(rng(), [0.0], turns=turns)) == 30


def test_trace_rows_are_scaled_in_time_and_checked() -> None:
    specs = online_from_rows([(0.0, 5, 2), (4.0, 7, 3)], time_scale=0.5)
    assert [(s.arrival_s, s.prompt_tokens, s.output_tokens) for s in specs] == [
        (0.0, 5, 2),
        (2.0, 7, 3),
    ]
    for row in ((-1.0, 5, 5), (0.0, 0, 5), (0.0, 5, 0), (float("nan"), 5, 5)):
        with pytest.raises(ConfigError, match="trace row 2"):
            online_from_rows([(0.0, 1, 1), row])


def test_hashes_depend_on_content_and_place_not_on_how_it_is_cut() -> None:
    hasher = BlockHasher(8)
    whole = hasher.hashes([Segment(key="a", tokens=20)])
    assert len(whole) == 2
    assert hasher.hashes([Segment(key="a", tokens=19)]) == whole
    assert hasher.hashes([Segment(key="b", tokens=8), Segment(key="a", tokens=16)])[1] not in whole
    assert hasher.hashes([]) == []


def test_arrivals_come_in_order_of_time_then_of_addition() -> None:
    arrivals = Arrivals(online_from_rows([(2.0, 1, 1), (1.0, 1, 1), (1.0, 2, 1)]))
    assert arrivals.next_s == 1.0
    assert [spec.id for spec in arrivals.due(1.5)] == ["on-1", "on-2"]
    assert [spec.id for spec in arrivals.due(9.0)] == ["on-0"]
    assert arrivals.next_s == float("inf")


def test_virtual_time_never_goes_back() -> None:
    clock = VirtualClock()
    clock.advance_to(2.0)
    clock.advance_to(2.0)
    with pytest.raises(InvariantError, match="cannot go to"):
        clock.advance_to(1.9)


@pytest.mark.parametrize("cost", [CPU_2_CORES, GPU_LIKE])
def test_true_costs_grow_with_every_kind_of_work(cost: CostModel) -> None:
    base = [Part(tokens=300, computed_tokens=0), Part(tokens=1, computed_tokens=500)]
    seconds = cost.work_s(base)
    assert cost.work_s([*base, Part(tokens=1, computed_tokens=500)]) > seconds
    assert cost.work_s([Part(tokens=500, computed_tokens=0), base[1]]) > seconds
    assert cost.work_s([Part(tokens=300, computed_tokens=900), base[1]]) > seconds
    assert cost.work_s([base[0], Part(tokens=1, computed_tokens=900)]) > seconds
    joined = [Part(tokens=300, computed_tokens=0, joined=True), base[1]]
    assert cost.work_s(joined) > seconds


def test_the_cpu_preset_prices_a_long_decode_like_six_prefill_tokens() -> None:
    """The declared measurement that the preset is matched to."""
    decodes = [Part(tokens=1, computed_tokens=1500)] * 16
    prefill = [Part(tokens=96, computed_tokens=0)]
    ratio = (CPU_2_CORES.work_s(decodes) / 16) / (CPU_2_CORES.work_s(prefill) / 96)
    assert ratio == pytest.approx(6, rel=0.15)
    assert CPU_2_CORES.empty_step_s == 7.5e-3


def test_a_gpu_step_is_flat_up_to_its_knee() -> None:
    few = GPU_LIKE.work_s([Part(tokens=1, computed_tokens=0)] * 2)
    assert GPU_LIKE.empty_step_s > GPU_LIKE.fixed_s
    assert few == pytest.approx(GPU_LIKE.work_s(()), rel=0.01)


def test_noise_has_a_tail_and_a_median_of_one() -> None:
    parts = [Part(tokens=64, computed_tokens=0)]
    quiet = CPU_2_CORES.fixed_s + CPU_2_CORES.work_s(parts)
    draw = rng(1)
    ratios = np.array([CPU_2_CORES.seconds(parts, draw) / quiet for _ in range(4000)])
    assert float(np.median(ratios)) == pytest.approx(1.0, abs=0.01)
    assert float(np.percentile(ratios, 99.7)) > 1.3
