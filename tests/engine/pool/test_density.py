"""Compute density and the memory partition, on BlendServe's own numbers (§2.3, Figure 5)."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir_engine.errors import ConfigError
from weir_engine.pool.density import LLAMA_8B_A100, DensityModel, blended_density, partition_memory

_DENSITIES = st.floats(min_value=0.01, max_value=100.0)


def test_density_of_the_papers_two_requests() -> None:
    """Figure 5: 512 in and 256 out is compute-bound, 256 in and 16,384 out memory-bound."""
    assert LLAMA_8B_A100.density(512, 256) == pytest.approx(3.75, rel=0.015)
    assert LLAMA_8B_A100.density(256, 16_384) == pytest.approx(0.096, abs=0.0005)


def test_memory_partition_of_the_papers_example() -> None:
    """Figure 5: 60 GB for a root of 1.27 become 19.3 and 40.7 GB."""
    for left_density in (3.73, 3.75):  # the figure's and the reproduced value
        part = partition_memory(
            60.0, left_density=left_density, right_density=0.096, target_density=1.27
        )
        assert part.left == pytest.approx(19.3, abs=0.1)
        assert part.right == pytest.approx(40.7, abs=0.1)


@settings(deadline=None)
@given(left=_DENSITIES, right=_DENSITIES, target=_DENSITIES)
def test_partition_uses_all_memory_and_blends_to_a_target_between(
    left: float, right: float, target: float
) -> None:
    part = partition_memory(60.0, left_density=left, right_density=right, target_density=target)
    assert part.left + part.right == pytest.approx(60.0)
    assert part.left >= 0
    assert part.right >= 0
    if right < target < left and left - right > 1e-3:
        blended = (part.left * left + part.right * right) / 60.0
        assert blended == pytest.approx(target, rel=1e-6)


def test_a_target_outside_both_densities_gives_everything_to_the_nearer_side() -> None:
    high = partition_memory(60.0, left_density=3.0, right_density=2.0, target_density=4.0)
    low = partition_memory(60.0, left_density=3.0, right_density=2.0, target_density=1.0)
    endless = partition_memory(60.0, left_density=inf, right_density=0.5, target_density=1.0)
    assert (high.left, low.left, endless.left) == (60.0, 0.0, 0.0)
    turned = partition_memory(60.0, left_density=0.5, right_density=inf, target_density=1.0)
    assert (turned.left, turned.right) == (60.0, 0.0)
    same = partition_memory(60.0, left_density=2.0, right_density=2.0, target_density=1.0)
    assert same.left == 30.0


def test_spans_of_a_prompt_add_up_to_the_whole() -> None:
    model = LLAMA_8B_A100
    whole = model.span_compute_s(0.0, 700.0)
    parts = model.span_compute_s(0.0, 300.0) + model.span_compute_s(300.0, 700.0)
    assert parts == pytest.approx(whole)
    assert model.compute_s(700.0, 0.0) == pytest.approx(whole)


def test_arrays_give_what_single_numbers_give() -> None:
    prompts, outputs = np.array([512.0, 256.0]), np.array([256.0, 16_384.0])
    compute_s = LLAMA_8B_A100.compute_s(prompts, outputs)
    memory_s = LLAMA_8B_A100.memory_s(prompts, outputs)
    assert list(compute_s / memory_s) == pytest.approx(
        [LLAMA_8B_A100.density(512, 256), LLAMA_8B_A100.density(256, 16_384)]
    )


def test_without_output_nothing_is_memory_bound() -> None:
    assert LLAMA_8B_A100.density(512, 0) == inf
    assert blended_density(1.0, 0.0) == inf


def test_a_device_without_bandwidth_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="bandwidth_bytes_s"):
        DensityModel(
            parameters=8e9,
            hidden=4096,
            kv_features=1024,
            layers=32,
            flops_s=312e12,
            bandwidth_bytes_s=0.0,
        )
