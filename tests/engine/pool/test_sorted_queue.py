"""The sorted queue against a sorted list."""

import random

import pytest

from weir_engine.errors import InvariantError
from weir_engine.pool.sorted_queue import SortedQueue


@pytest.mark.parametrize("order", ["rising", "falling", "mixed"])
def test_stays_sorted_across_buckets(order: str) -> None:
    rng = random.Random(7)  # noqa: S311
    keys = [(key,) for key in range(3000)]
    if order == "falling":
        keys.reverse()
    elif order == "mixed":
        rng.shuffle(keys)
    queue: SortedQueue[tuple[int]] = SortedQueue()
    for key in keys:
        queue.add(key)
    assert list(queue) == sorted(keys)
    gone = rng.sample(keys, 2000)
    for key in gone:
        queue.remove(key)
    left = sorted(set(keys) - set(gone))
    assert list(queue) == left
    assert len(queue) == 1000
    for key in left:
        queue.remove(key)
    assert list(queue) == []


def test_removing_what_is_not_there_names_the_key() -> None:
    queue: SortedQueue[tuple[int]] = SortedQueue()
    queue.add((1,))
    queue.add((3,))
    with pytest.raises(InvariantError, match=r"key \(2,\) is not among the 2 keys"):
        queue.remove((2,))
    with pytest.raises(InvariantError, match=r"key \(4,\) is not among the 2 keys"):
        queue.remove((4,))
