"""The array tree of a batch: structure against an oracle, and order properties."""

from itertools import pairwise

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
from weir_engine.pool.density_tree import DensityTree, Prompts, build_tree

_TEXTS = st.lists(st.text(alphabet="ab", max_size=7), min_size=1, max_size=24)


def _path(tree: DensityTree, node: int) -> list[int]:
    path = [node]
    while path[-1] != 0:
        path.append(int(tree.parent[path[-1]]))
    return path


@settings(deadline=None)
@given(texts=_TEXTS)
def test_every_request_is_one_leaf_and_prefixes_are_counted_once(texts: list[str]) -> None:
    tree = build_tree(make_prompts(texts))
    assert len(set(tree.leaf.tolist())) == len(texts)
    assert int(tree.leaves()[0]) == len(texts)
    own = tree.end_tokens - tree.start_tokens
    assert int(own.sum()) == distinct_tokens(texts)
    total = sum(len(text) * BLOCK_TOKENS + 3 for text in texts)
    assert tree.root_sharing == pytest.approx(1 - distinct_tokens(texts) / total)


@settings(deadline=None)
@given(texts=_TEXTS)
def test_two_requests_meet_where_their_texts_part(texts: list[str]) -> None:
    tree = build_tree(make_prompts(texts))
    for (i, one), (j, other) in pairwise(enumerate(texts)):
        shared = 0
        while shared < min(len(one), len(other)) and one[shared] == other[shared]:
            shared += 1
        above = set(_path(tree, int(tree.leaf[i]))) & set(_path(tree, int(tree.leaf[j])))
        assert max(int(tree.end_tokens[node]) for node in above) == shared * BLOCK_TOKENS


@settings(deadline=None)
@given(texts=_TEXTS, data=st.data())
def test_any_depth_first_order_shares_as_much_as_there_is(
    texts: list[str], data: st.DataObject
) -> None:
    tree = build_tree(make_prompts(texts))
    keys = data.draw(
        st.lists(st.integers(0, 3), min_size=tree.nodes, max_size=tree.nodes), label="keys"
    )
    order = tree.depth_first(np.array(keys, dtype=np.float64)).tolist()
    assert sorted(order) == list(range(len(texts)))
    # An empty text ends at the root, so it may stand between two that share nothing anyway.
    assert computed_tokens(texts, order) == distinct_tokens(texts)


@settings(deadline=None)
@given(texts=_TEXTS)
def test_the_tree_is_compressed(texts: list[str]) -> None:
    tree = build_tree(make_prompts(texts))
    inner = np.setdiff1d(np.arange(1, tree.nodes), tree.leaf)
    assert bool((tree.children()[inner] >= 2).all())
    assert bool((tree.children()[tree.leaf] == 0).all())
    assert tree.nodes <= 2 * len(texts) + 1


def test_siblings_stand_in_order_of_their_keys_and_ties_in_order_of_arrival() -> None:
    texts = ["xa", "ya", "xb", "yb", "xa"]
    tree = build_tree(make_prompts(texts))
    assert tree.depth_first(np.zeros(tree.nodes)).tolist() == [0, 4, 2, 1, 3]
    key = np.zeros(tree.nodes)
    key[tree.parent[tree.leaf[1]]] = -1.0  # the family y first
    assert tree.depth_first(key).tolist() == [1, 3, 0, 4, 2]
    assert len(set(tree.families()[[0, 2, 4]])) == 1
    assert len(set(tree.families())) == 2


def test_a_prompt_that_ends_at_its_last_block_still_computes_a_token() -> None:
    tree = build_tree(make_prompts(["ab", "ab"], tail_tokens=0 + BLOCK_TOKENS))
    whole = build_tree(Prompts.of([([1, 2], 20), ([1, 2], 20)], block_size_tokens=10))
    assert tree.start_tokens[tree.leaf].tolist() == [20, 20]
    assert whole.start_tokens[whole.leaf].tolist() == [10, 10]


def test_no_prompts_make_a_root_alone() -> None:
    tree = build_tree(make_prompts([]))
    assert (tree.nodes, tree.root_sharing) == (1, 0.0)
    assert tree.depth_first(np.zeros(1)).tolist() == []


def test_prompts_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ConfigError, match="one more offset"):
        Prompts(
            hashes=np.zeros(3, dtype=np.int64),
            offsets=np.array([0, 2]),
            tokens=np.array([25]),
            block_size_tokens=10,
        )
    with pytest.raises(ConfigError, match="full blocks"):
        Prompts.of([([1, 2], 15)], block_size_tokens=10)
