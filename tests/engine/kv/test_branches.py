"""What goes on behind a cached prefix, token by token."""

from __future__ import annotations

from dataclasses import dataclass
from time import process_time

from hypothesis import given
from hypothesis import strategies as st

from weir_engine.ids import BlockHash, RequestId
from weir_engine.kv.branches import PrefixBranches, Tail


@dataclass
class Block:
    """A block of the cache."""

    block_hash: bytes | None


def prefix(name: str) -> BlockHash:
    return name.encode()


def test_the_block_that_shares_most_is_found() -> None:
    branches = PrefixBranches(4)
    one, two = Block(b"1"), Block(b"2")
    branches.add(prefix("p"), one, [1, 2, 3, 4])
    branches.add(prefix("p"), two, [1, 2, 9, 9])
    assert branches.find(prefix("p"), [1, 2, 3, 7]) == Tail(one, b"1", 3)
    assert branches.find(prefix("p"), [1, 2, 9]) == Tail(two, b"2", 3)
    assert branches.find(prefix("p"), [1, 8]) == Tail(two, b"2", 1)  # equal: the newest
    assert branches.find(prefix("p"), [7]) is None
    assert branches.find(prefix("q"), [1]) is None


def test_what_was_evicted_is_not_found() -> None:
    branches = PrefixBranches(4)
    block = Block(b"1")
    branches.add(prefix("p"), block, [1, 2])
    found = branches.find(prefix("p"), [1, 2])
    assert found == Tail(block, b"1", 2)
    assert found.holds
    block.block_hash = None
    assert [found.holds] == [False]
    assert branches.find(prefix("p"), [1, 2]) is None
    block.block_hash = b"other content"
    assert branches.find(prefix("p"), [1, 2]) is None


def test_the_version_rises_with_each_block() -> None:
    branches = PrefixBranches(4)
    assert branches.version(prefix("p")) == 0
    branches.add(prefix("p"), Block(b"1"), [1])
    first = branches.version(prefix("p"))
    branches.add(prefix("p"), Block(b"2"), [2])
    assert branches.version(prefix("p")) > first > 0


def test_a_prefix_that_is_back_has_another_version() -> None:
    """Whoever waited for its leader, by a version of before it was dropped, looks again."""
    branches = PrefixBranches(1)
    branches.expect(prefix("p"), RequestId("a"))
    seen = branches.version(prefix("p"))
    branches.add(prefix("q"), Block(b"1"), [1])
    branches.add(prefix("p"), Block(b"2"), [2])
    assert branches.leaders(prefix("p")) == ()
    back = branches.version(prefix("p"))
    branches.clear()
    branches.add(prefix("p"), Block(b"3"), [3])
    assert branches.version(prefix("p")) > back > seen


def test_leaders_are_known_until_they_are_done() -> None:
    branches = PrefixBranches(4)
    assert branches.leaders(prefix("p")) == ()
    for name in ("a", "b"):
        branches.expect(prefix("p"), RequestId(name))
    version = branches.version(prefix("p"))
    assert branches.leaders(prefix("p")) == ("a", "b")
    branches.expect_no_more(prefix("p"), RequestId("a"))
    branches.expect_no_more(prefix("p"), RequestId("nobody"))
    branches.expect_no_more(prefix("q"), RequestId("b"))
    assert branches.leaders(prefix("p")) == ("b",)
    assert branches.version(prefix("p")) == version + 1


def test_a_dropped_cache_leaves_nothing() -> None:
    branches = PrefixBranches(4)
    branches.add(prefix("p"), Block(b"1"), [1])
    branches.clear()
    assert len(branches) == 0
    assert branches.find(prefix("p"), [1]) is None


def test_memory_is_bounded_by_prefixes_and_by_blocks_behind_each() -> None:
    branches = PrefixBranches(3)
    for number in range(50):
        branches.add(prefix("much used"), Block(b"%d" % number), [number])
        branches.add(prefix(f"p{number}"), Block(b"x"), [1])
    assert len(branches) == 3
    found = [n for n in range(50) if branches.find(prefix("much used"), [n]) is not None]
    assert found == list(range(42, 50))


def test_many_prefixes_are_dropped_as_fast_as_few() -> None:
    def seconds(most: int) -> float:
        branches = PrefixBranches(most)
        for number in range(3 * most):
            branches.expect(prefix(f"{number}"), RequestId("a"))
        started_s = process_time()
        for number in range(5_000):
            branches.expect(prefix(f"new{number}"), RequestId("a"))
        return process_time() - started_s

    assert seconds(40_000) < 8 * seconds(400)


TOKENS = st.lists(st.integers(0, 2), min_size=4, max_size=4)


@given(st.lists(TOKENS, max_size=8), st.lists(st.integers(0, 2), max_size=4))
def test_no_other_block_shares_more(held: list[list[int]], wanted: list[int]) -> None:
    branches = PrefixBranches(4)
    for number, tokens in enumerate(held):
        branches.add(prefix("p"), Block(b"%d" % number), tokens)
    shared = [max(n for n in range(len(wanted) + 1) if tokens[:n] == wanted[:n]) for tokens in held]
    found = branches.find(prefix("p"), wanted)
    assert (0 if found is None else found.tokens) == max(shared, default=0)
