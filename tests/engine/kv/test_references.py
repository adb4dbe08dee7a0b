"""Counts of waiting requests by hash."""

from collections.abc import Mapping, Sequence

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

    def listen(hashes: Sequence[BlockHash], counts: Mapping[BlockHash, int]) -> None:
        heard.extend((block_hash, counts.get(block_hash, 0)) for block_hash in hashes)

    counter = ReferenceCounter(listen)
    counter.add(_A, [1, 2])
    counter.add(_B, [1])
    counter.remove(_A)
    assert heard == [(2, 1), (1, 1), (1, 2), (2, 0), (1, 1)]


def test_later_growth_of_a_hash_list_is_not_counted() -> None:
    counter = ReferenceCounter()
    hashes: list[BlockHash] = [1]
    counter.add(_A, hashes)
    hashes.append(2)
    assert counter.count(2) == 0
    counter.remove(_A)
    assert counter.count(1) == 0
