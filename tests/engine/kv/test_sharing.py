"""Tokens that several requests hold together count once."""

from weir_engine.kv.sharing import distinct_tokens


def test_whole_blocks_of_a_shared_prefix_count_once() -> None:
    contexts = [([1, 2, 3], 100), ([1, 2, 4], 110), ([7], 40)]
    assert distinct_tokens(contexts, 32) == 100 + (110 - 64) + 40


def test_blocks_that_are_known_and_not_yet_computed_do_not_count() -> None:
    contexts = [([1, 2, 3], 64), ([1, 2, 3], 32)]
    assert distinct_tokens(contexts, 32) == 64
    assert distinct_tokens([([1, 2], 0)], 32) == 0
    assert distinct_tokens([], 32) == 0
