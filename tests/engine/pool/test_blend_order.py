"""BlendServe's order: sampling, densities, sort and node split. The split examples are ours."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.pool.prompts import (
    BLOCK_TOKENS,
    computed_tokens,
    distinct_tokens,
    make_prompts,
)
from weir_engine.errors import ConfigError
from weir_engine.pool.blend_order import (
    BlendOrder,
    blend,
    estimate_outputs,
    sample_requests,
    split_nodes,
    tree_costs,
)
from weir_engine.pool.density import LLAMA_8B_A100
from weir_engine.pool.density_tree import build_tree

_TEXTS = st.lists(st.text(alphabet="ab", max_size=7), min_size=1, max_size=24)
_OUTPUTS = st.integers(min_value=1, max_value=2_000)


def _order(texts: list[str], outputs: list[int], *, split_share: float) -> BlendOrder:
    prompts = make_prompts(texts)
    return blend(
        build_tree(prompts),
        prompts,
        outputs=np.array(outputs, dtype=np.float64),
        model=LLAMA_8B_A100,
        split_share=split_share,
    )


@settings(deadline=None)
@given(texts=_TEXTS, data=st.data())
def test_every_request_is_in_the_order_once_and_density_falls(
    texts: list[str], data: st.DataObject
) -> None:
    outputs = data.draw(st.lists(_OUTPUTS, min_size=len(texts), max_size=len(texts)))
    share = data.draw(st.floats(min_value=0.0, max_value=1.0))
    order = _order(texts, outputs, split_share=share)
    assert sorted(order.requests.tolist()) == list(range(len(texts)))
    assert len(order) == len(texts)
    assert order.density[0] == order.density.max() or len(texts) > 64


@settings(deadline=None)
@given(texts=_TEXTS, data=st.data())
def test_without_splitting_sharing_stays_optimal(texts: list[str], data: st.DataObject) -> None:
    outputs = data.draw(st.lists(_OUTPUTS, min_size=len(texts), max_size=len(texts)))
    order = _order(texts, outputs, split_share=0.0)
    assert computed_tokens(texts, order.requests.tolist()) == distinct_tokens(texts)


@settings(deadline=None)
@given(texts=_TEXTS, data=st.data())
def test_splitting_recomputes_no_more_than_it_may(texts: list[str], data: st.DataObject) -> None:
    outputs = data.draw(st.lists(_OUTPUTS, min_size=len(texts), max_size=len(texts)))
    share = data.draw(st.floats(min_value=0.0, max_value=0.5))
    order = _order(texts, outputs, split_share=share)
    waste = computed_tokens(texts, order.requests.tolist()) - distinct_tokens(texts)
    allowed = share * sum(len(text) * BLOCK_TOKENS + 3 for text in texts)
    assert waste <= allowed + 1e-6


@settings(deadline=None)
@given(texts=_TEXTS, data=st.data())
def test_parts_of_the_work_add_up_to_the_roots(texts: list[str], data: st.DataObject) -> None:
    outputs = data.draw(st.lists(_OUTPUTS, min_size=len(texts), max_size=len(texts)))
    order = _order(texts, outputs, split_share=0.0)
    ratio = float(order.compute_s.sum() / order.memory_s.sum())
    assert ratio == pytest.approx(order.target_density)


# Ours: two families, "a" compute-bound but for one request, "b" memory-bound.
_FAMILIES = ["ax", "ay", "az", "bx", "by", "bz"]
_LENGTHS = [1_500, 5_000, 1_600, 4_000, 4_000, 4_000]


def test_an_outlier_is_moved_where_its_prefix_is_cheap() -> None:
    """Example of ours: the long request of family a goes last, for one block computed again."""
    order = _order(_FAMILIES, _LENGTHS, split_share=1.0)
    assert [_FAMILIES[i] for i in order.requests][-1] == "ay"
    assert [_FAMILIES[i] for i in order.requests][:2] == ["ax", "az"]


def test_an_outlier_stays_where_moving_it_costs_too_much() -> None:
    """Example of ours: at a threshold below the prefix, it ends its own family instead."""
    order = _order(_FAMILIES, _LENGTHS, split_share=0.05)
    assert [_FAMILIES[i] for i in order.requests] == ["ax", "az", "ay", "bx", "by", "bz"]


def test_units_are_the_nodes_whose_split_exceeds_the_threshold() -> None:
    """Algorithm 2 on the families of ours: the prefix of 10 tokens times 3 children, in halves."""
    tree = build_tree(make_prompts(_FAMILIES))
    family = tree.parent[tree.leaf]
    kept = split_nodes(tree, 59.0)  # each family may cost 29.5
    split = split_nodes(tree, 60.0)
    assert kept[tree.leaf].tolist() == family.tolist()
    assert split[tree.leaf].tolist() == tree.leaf.tolist()


def test_the_sort_puts_compute_bound_subtrees_and_requests_first() -> None:
    texts, lengths = ["bx", "by", "ax", "ay"], [500, 100, 50, 10]
    order = _order(texts, lengths, split_share=0.0)
    assert [texts[i] for i in order.requests] == ["ay", "ax", "by", "bx"]


def test_small_units_are_merged_and_large_ones_are_not() -> None:
    texts = [f"{chr(1000 + i)}" for i in range(130)]
    order = _order(texts, list(range(1, 131)), split_share=0.0)
    assert len(set(order.density.tolist())) == 3
    family = _order(["ab"[i % 2] + chr(1000 + i) for i in range(130)], [5] * 130, split_share=0.0)
    assert len(set(family.density.tolist())) == 1
    assert _order([], [], split_share=0.0).density.tolist() == []


def test_a_subtree_takes_its_samples_mean_and_an_unsampled_one_its_siblings() -> None:
    """BlendServe §3.2, on a tree of ours."""
    texts = ["aax", "aay", "abx", "aby", "bx"]
    tree = build_tree(make_prompts(texts))
    seen = np.array([True, False, False, False, True])
    outputs = np.array([100.0, 7.0, 7.0, 7.0, 900.0])
    estimated = estimate_outputs(tree, outputs=outputs, seen=seen)
    assert estimated.tolist() == [100.0, 100.0, 100.0, 100.0, 900.0]
    one = np.array([False, False, False, False, True])
    assert estimate_outputs(tree, outputs=outputs, seen=one).tolist() == [900.0] * 5
    with pytest.raises(ConfigError, match="sample at least one"):
        estimate_outputs(tree, outputs=outputs, seen=np.zeros(5, dtype=np.bool_))


def test_a_hundredth_is_sampled_of_those_whose_length_is_not_known() -> None:
    known = np.zeros(1_000, dtype=np.bool_)
    known[:400] = True
    chosen = sample_requests(1_000, known=known, share=0.01, rng=np.random.default_rng(1))
    assert int(chosen.sum()) == 6
    assert not bool((chosen & known).any())
    everything = np.ones(10, dtype=np.bool_)
    none = sample_requests(10, known=everything, share=0.01, rng=np.random.default_rng(1))
    assert int(none.sum()) == 0
    with pytest.raises(ConfigError, match="share"):
        sample_requests(10, known=everything, share=1.5, rng=np.random.default_rng(1))


def test_density_of_a_set_counts_its_shared_prefix_once() -> None:
    """rho(R) = (1 - s) T_comp / T_mem (§3.2)."""
    texts = ["a" * 50 + "x", "a" * 50 + "y"]
    prompts = make_prompts(texts)
    costs = tree_costs(build_tree(prompts), np.array([20.0, 20.0]), LLAMA_8B_A100)
    single = LLAMA_8B_A100.compute_s(513.0, 20.0)
    shared = LLAMA_8B_A100.span_compute_s(0.0, 500.0)
    memory_s = 2 * LLAMA_8B_A100.memory_s(513.0, 20.0)
    assert costs.root_density == pytest.approx((2 * single - shared) / memory_s)
    nothing = tree_costs(build_tree(prompts), np.zeros(2), LLAMA_8B_A100)
    assert nothing.root_density == inf
