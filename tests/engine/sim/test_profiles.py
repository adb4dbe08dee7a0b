"""Hardware profiles: what was measured comes out as it was measured, what was derived says so."""

import json
from importlib.resources import files
from itertools import pairwise

import numpy as np
import pytest

from weir_engine.errors import ConfigError
from weir_engine.sim.cost import Part
from weir_engine.sim.profile_cost import Backend, Interference, ProfileCost, batch_of
from weir_engine.sim.profiles import PROFILES, HardwareProfile, load_profile


def seconds(name: str, *parts: Part) -> float:
    return ProfileCost(profile=load_profile(name)).step_s(batch_of(parts))


def decodes(count: int, context_tokens: int) -> list[Part]:
    return [Part(tokens=1, computed_tokens=context_tokens - 1)] * count


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_says_where_each_part_comes_from(name: str) -> None:
    profile = load_profile(name)
    assert {"measured", "declared"} <= {origin.mark for origin in profile.origins}
    assert all(origin.source for origin in profile.origins)
    assert all(origin.licence for origin in profile.origins if origin.mark == "measured")


@pytest.mark.parametrize("name", PROFILES)
def test_more_work_takes_longer(name: str) -> None:
    empty = ProfileCost(profile=load_profile(name)).empty_step_s
    small = seconds(name, *decodes(8, 500))
    assert 0 < empty < small < seconds(name, *decodes(64, 2000))
    assert small < seconds(name, Part(tokens=512, computed_tokens=0), *decodes(8, 500))
    assert seconds(name, Part(tokens=9000, computed_tokens=20_000)) > seconds(
        name, Part(tokens=2048, computed_tokens=0)
    )


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("a100-40gb-llama-2-7b", 44_000),
        ("a100-40gb-llama-3.1-8b", 156_000),
        ("a100-40gb-opt-13b-tp2", 58_000),
        ("a100-80gb-llama-2-70b-tp4", 490_000),
    ],
)
def test_kv_capacity_is_what_engines_report(name: str, tokens: int) -> None:
    profile = load_profile(name)
    assert profile.kv_capacity_tokens == pytest.approx(tokens, rel=0.02)
    assert profile.engine_shape().total_blocks == profile.kv_capacity_tokens // 16


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"llama-2-70b-tp1.*more GPUs"):
        load_profile("a100-80gb-llama-2-70b-tp1").engine_shape()


def test_an_unknown_profile_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"rtx-pro-6000-llama-3\.1-8b"):
        load_profile("h100")


# Mutinifni/splitwise-sim data/perf_model.csv (MIT): Llama-2-70B on A100 80 GB, batch of one;
# (tensor parallel, prompt tokens): milliseconds of the prompt and of a token. Not in any profile.
SPLITWISE = {(2, 512): (196.3, 54.9)}


@pytest.mark.parametrize("shape", SPLITWISE)
def test_a_whole_model_takes_what_another_team_measured(shape: tuple[int, int]) -> None:
    degree, prompt = shape
    prompt_ms, token_ms = SPLITWISE[shape]
    name = f"a100-80gb-llama-2-70b-tp{degree}"
    assert seconds(name, Part(tokens=prompt, computed_tokens=0)) * 1e3 == pytest.approx(
        prompt_ms, rel=0.05
    )
    assert seconds(name, *decodes(1, prompt)) * 1e3 == pytest.approx(token_ms, rel=0.05)


def test_dense_time_has_tile_steps() -> None:
    name = "a100-80gb-llama-2-7b"
    at = {n: seconds(name, Part(tokens=n, computed_tokens=0)) for n in (121, 128, 129, 136)}
    assert at[128] - at[121] < 0.1 * (at[129] - at[128])
    assert at[136] == pytest.approx(at[129], rel=0.01)


def test_fused_attention_gives_the_measured_value_on_the_grid() -> None:
    text = files("weir_engine.sim.profiles") / "data" / "attention-rtx-pro-6000.json"
    table = json.loads(text.read_text("utf-8"))
    chunk, history, count, context = 512, 2048, 16, 1024
    row = table["us"][table["chunk"].index(chunk)][table["history"].index(history)]
    cell = table["decodes"].index(count) * len(table["context"]) + table["context"].index(context)
    alone_us, both_us = row[0], row[1 + cell]
    name = "rtx-pro-6000-llama-3.1-8b"
    timing = load_profile(name).timing
    step = timing.step(
        batch_of([Part(tokens=chunk, computed_tokens=history), *decodes(count, context)])
    )
    assert step.prefill_s == pytest.approx(alone_us * 32e-6, rel=1e-6)
    assert step.decode_s == pytest.approx((both_us - alone_us) * 32e-6, rel=1e-6)


@pytest.mark.parametrize("name", ["rtx-pro-6000-llama-3.1-8b", "a30-qwen-2-7b"])
@pytest.mark.parametrize("history", [8_000, 20_000, 32_000, 100_000])
@pytest.mark.parametrize("context", [4_000, 20_000, 32_000, 100_000])
@pytest.mark.parametrize("chunk", [8, 512, 3000])
def test_beyond_the_table_no_decode_makes_a_step_faster(
    name: str, history: int, context: int, chunk: int
) -> None:
    prefill = Part(tokens=chunk, computed_tokens=history)
    counts = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 128, 200)
    both = [seconds(name, prefill, *decodes(count, context)) for count in counts]
    for fewer, more in pairwise(both):
        assert more >= 0.98 * fewer  # tiles of the dense layers
    for count, step_s in zip(counts, both, strict=True):
        assert step_s >= seconds(name, *decodes(count, context))


def test_beyond_the_table_both_grow_by_their_own_tokens() -> None:
    timing = load_profile("rtx-pro-6000-llama-3.1-8b").timing

    def attention(history: int, context: int) -> tuple[float, float]:
        prefill = Part(tokens=512, computed_tokens=history)
        step = timing.step(batch_of([prefill, *decodes(16, context)]))
        return step.prefill_s, step.decode_s

    edge, longer = attention(16_384, 16_384), attention(65_536, 65_536)
    assert longer[0] == pytest.approx(4 * edge[0], rel=0.1)
    assert longer[1] == pytest.approx(4 * edge[1], rel=1e-6)
    assert attention(16_385, 16_385)[1] == pytest.approx(edge[1], rel=1e-3)


@pytest.mark.parametrize("name", ["rtx-pro-6000-llama-3.1-8b", "a100-80gb-llama-3.1-8b"])
def test_several_prefills_cost_by_their_pairs(name: str) -> None:
    many = seconds(name, *[Part(tokens=64, computed_tokens=0)] * 8)
    one = seconds(name, Part(tokens=512, computed_tokens=0))
    late = seconds(name, Part(tokens=512, computed_tokens=8000))
    assert many <= one * 1.02 < late


@pytest.mark.parametrize("name", ["rtx-pro-6000-llama-3.1-8b", "a100-80gb-llama-2-7b"])
def test_an_uneven_batch_lies_between_its_mean_and_its_longest(name: str) -> None:
    prefill = Part(tokens=256, computed_tokens=0)
    uneven = [*decodes(24, 500), *decodes(8, 4500)]
    mean = seconds(name, prefill, *decodes(32, 1500))
    longest = seconds(name, prefill, *decodes(32, 4500))
    assert mean < seconds(name, prefill, *uneven) < longest


@pytest.mark.parametrize("name", [n for n in PROFILES if "opt-13b" not in n])
@pytest.mark.parametrize(("count", "context"), [(1, 40_000), (5, 36_000), (27, 11_000)])
def test_no_decode_reads_faster_than_memory(name: str, count: int, context: int) -> None:
    """Contexts beyond the measured 4,032 tokens too: a row's own end says nothing of them."""
    profile = load_profile(name)
    gpus = profile.tensor_parallel
    read = count * context * profile.model.kv_bytes_per_token / gpus
    step = profile.timing.step(batch_of(decodes(count, context)))
    assert 0.25 < read / step.decode_s / profile.gpu.bandwidth_bytes_s < 1.0
    longer = profile.timing.step(batch_of(decodes(count, 2 * context)))
    assert longer.decode_s == pytest.approx(2 * step.decode_s, rel=0.2)


def test_a_step_between_no_prefill_and_the_smallest_measured_one() -> None:
    name = "rtx-pro-6000-llama-3.1-8b"
    none = seconds(name, *decodes(8, 1000))
    few = seconds(name, Part(tokens=8, computed_tokens=1000), *decodes(8, 1000))
    some = seconds(name, Part(tokens=16, computed_tokens=1000), *decodes(8, 1000))
    assert none < few <= some * 1.01


@pytest.mark.parametrize("name", [n for n in PROFILES if "opt-13b" not in n])
@pytest.mark.parametrize("history", [64, 1000, 4000])
def test_few_new_tokens_cost_no_more_than_many(name: str, history: int) -> None:
    """A30's 32 tokens were measured without history only: that says nothing of what it costs."""

    def prefill_s(tokens: int) -> float:
        step = load_profile(name).timing.step(
            batch_of([Part(tokens=tokens, computed_tokens=history)])
        )
        return step.prefill_s

    for fewer, more in pairwise((8, 32, 48, 64, 128, 512)):
        assert prefill_s(fewer) <= 1.05 * prefill_s(more)


def test_slower_memory_stretches_what_memory_bounds_only() -> None:
    big, small = "a100-80gb-llama-3.1-8b", "a100-40gb-llama-3.1-8b"
    prefill = Part(tokens=2048, computed_tokens=0)
    assert seconds(small, prefill) == pytest.approx(seconds(big, prefill), rel=0.01)
    assert seconds(small, *decodes(32, 4000)) > 1.2 * seconds(big, *decodes(32, 4000))


def test_a_declared_link_is_slower_than_the_measured_one() -> None:
    prefill = Part(tokens=2048, computed_tokens=0)
    nvlink = seconds("a100-80gb-llama-2-70b-tp4", prefill)
    pcie = seconds("a100-80gb-pcie-llama-2-70b-tp4", prefill)
    message = 2048 * 8192 * 2
    assert pcie - nvlink == pytest.approx(160 * message * 1.5 / 20e9, rel=0.2)


def test_distserve_coefficients_as_published() -> None:
    name = "a100-40gb-opt-13b-tp2"
    prompt = 14.742973695171262 + 0.06857720739764 * 500 + 2.4495727400243586e-06 * 500**2
    assert seconds(name, Part(tokens=500, computed_tokens=0)) * 1e3 == pytest.approx(prompt)
    small = 13.294796350285385 + 0.00034109219700723494 * 5000 + 0.06296393225243659 * 10
    assert seconds(name, *decodes(10, 500)) * 1e3 == pytest.approx(small)
    large = 10.638741913126715 + 0.00031183369638295723 * 50_000 + 0.08562913604102729 * 100
    assert seconds(name, *decodes(100, 500)) * 1e3 == pytest.approx(large)


def overlapped(profile: HardwareProfile, interference: Interference, *parts: Part) -> float:
    cost = ProfileCost(profile=profile, backend=Backend.OVERLAPPED, interference=interference)
    return cost.step_s(batch_of(parts))


def test_overlap_gains_when_both_lanes_are_busy_and_interference_costs() -> None:
    profile = load_profile("a100-80gb-llama-2-7b")
    mixed = (Part(tokens=512, computed_tokens=0), *decodes(64, 1000))
    one_by_one = seconds(profile.name, *mixed)
    free = overlapped(profile, Interference(linear=0.0, square=0.0), *mixed)
    usual = overlapped(profile, Interference(), *mixed)
    worst = overlapped(profile, Interference(linear=5.0, square=0.0), *mixed)
    assert free < usual < one_by_one
    assert worst == pytest.approx(one_by_one)
    alone = Part(tokens=512, computed_tokens=0)
    assert overlapped(profile, Interference(), alone) == pytest.approx(seconds(profile.name, alone))


def test_negative_interference_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 or more"):
        Interference(linear=-0.1)


def test_noise_is_the_measured_deviation_and_seeded() -> None:
    profile = load_profile("a100-80gb-llama-3.1-8b")
    cost = ProfileCost(profile=profile)
    parts = decodes(32, 1000)
    drawn = [cost.seconds(parts, np.random.default_rng(seed)) for seed in range(400)]
    expected = profile.timing.step(batch_of(parts)).std_s
    assert np.std(drawn) == pytest.approx(expected, rel=0.2)
    assert cost.seconds(parts, np.random.default_rng(3)) == drawn[3]
    silent = ProfileCost(profile=profile, noise_scale=0.0)
    assert silent.seconds(parts, np.random.default_rng(0)) == silent.step_s(batch_of(parts))


def test_work_leaves_out_what_the_host_adds_a_step() -> None:
    cost = ProfileCost(profile=load_profile("rtx-pro-6000-llama-3.1-8b"))
    parts = decodes(4, 1000)
    fixed = cost.step_s(batch_of(parts)) - cost.work_s(parts)
    assert fixed == pytest.approx(1.5e-3)
    assert cost.empty_step_s == pytest.approx(cost.work_s(()) + fixed)


def test_swaps_and_cpu_attention_are_bounded_by_their_bandwidth() -> None:
    profile = load_profile("a100-80gb-llama-2-70b-tp4")
    held = 1000 * profile.model.kv_bytes_per_token
    assert profile.swap_s(1000) == pytest.approx(held / (4 * 25e9))
    one = profile.cpu_attention_s(9000, layers=80)
    assert one == pytest.approx(9000 * profile.model.kv_bytes_per_token / (0.8 * 204.8e9))
    assert profile.cpu_attention_s(9000, layers=80, hosts=5) == pytest.approx(one / 5)
    assert profile.cpu_exchange_s(8, remote=True) > profile.cpu_exchange_s(8, remote=False) > 0
