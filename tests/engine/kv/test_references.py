"""Counts of waiting requests by hash."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from weir_engine.ids import BlockHash, RequestId
from weir_engine.kv.references import ReferenceCounter

_A, _B = RequestId("a"), RequestId("b")


def test_counts_follow_the_requests_that_wait() -> None:
    counter = ReferenceCounter()
    counter.add(_A, [1, 2, 3])
    counter.add(_B, [1, 2, 4])
    assert [counter.count(block_hash) for block_hash in range(6)] == [0, 2, 2, 1, 1, 0]
    assert len(counter) == 2
    assert counter.remove(_A)
    assert [counter.count(block_hash) for block_hash in range(6)] == [0, 1, 1, 0, 1, 0]
    assert _A not in counter
    assert _B in counter


def test_removing_twice_counts_once() -> None:
    counter = ReferenceCounter()
    counter.add(_A, [1])
    assert counter.remove(_A)
    assert not counter.remove(_A)
    assert counter.count(1) == 0


def test_the_listener_hears_new_counts_from_the_end_of_the_prompt() -> None:
    heard: list[tuple[BlockHash, int]] = []

    def listen(hashes: Sequence[BlockHash]) -> None:
        heard.extend((block_hash, counter.count(block_hash)) for block_hash in hashes)

    counter = ReferenceCounter(listen)
    counter.add(_A, [1, 2])
    counter.add(_B, [1])
    counter.remove(_A)
    assert heard == [(2, 1), (1, 1), (1, 2), (2, 0), (1, 1)]


def test_the_listener_does_not_hear_of_blocks_that_the_request_holds_now() -> None:
    heard: list[BlockHash] = []

    counter = ReferenceCounter(heard.extend)
    counter.add(_A, [1, 2, 3])
    heard.clear()
    counter.remove(_A, held=2)
    assert heard == [3]
    assert counter.count(1) == 0


def test_later_growth_of_a_hash_list_is_not_counted() -> None:
    counter = ReferenceCounter()
    hashes: list[BlockHash] = [1]
    counter.add(_A, hashes)
    hashes.append(2)
    assert counter.count(2) == 0
    counter.remove(_A)
    assert counter.count(1) == 0


def test_a_hash_that_two_prefixes_have_by_chance_ends_the_count_of_the_second() -> None:
    counter = ReferenceCounter()
    counter.add(_A, [1, 2, 3])
    counter.add(_B, [2, 4])
    assert counter.counts([1, 2, 3, 4, None]) == [1, 1, 1, 0, 0]
    assert counter.remove(_B)
    assert counter.remove(_A)
    assert counter.counts([1, 2, 3, 4]) == [0, 0, 0, 0]


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=12),
    removals=st.lists(st.integers(0, 11)),
)
def test_counts_are_those_of_a_plain_counter(prompts: list[list[int]], removals: list[int]) -> None:
    """Prompts over two letters share prefixes of every length; a hash stands for a prefix."""
    chained = [[hash(tuple(prompt[: at + 1])) for at in range(len(prompt))] for prompt in prompts]
    heard: list[BlockHash] = []
    counter = ReferenceCounter(heard.extend)
    waiting: dict[int, list[int]] = {}
    for number, hashes in enumerate(chained):
        counter.add(RequestId(str(number)), hashes)
        waiting[number] = hashes
        assert heard == hashes[::-1]
        heard.clear()
    for number in removals:
        assert counter.remove(RequestId(str(number))) == (number in waiting)
        assert heard == waiting.pop(number, [])[::-1]
        heard.clear()
        plain = Counter(block_hash for hashes in waiting.values() for block_hash in hashes)
        every = sorted({block_hash for hashes in chained for block_hash in hashes})
        assert counter.counts(every) == [plain[block_hash] for block_hash in every]
        assert counter.among(every) == len(plain)
