"""The free list against a naive model, and Echo's order on small tables of our own."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weir_engine.errors import CapacityError, InvariantError
from weir_engine.kv.eviction import (
    UNCACHED,
    BlockLabel,
    ClassedEviction,
    EvictionPolicy,
    LruEviction,
    count_rank,
)
from weir_engine.kv.free_list import ClassedFreeList

_BLOCKS = 7


class _AgainstModel(RuleBasedStateMachine):
    """The model is one Python list of free ids, young at the end, sorted stably by rank to read."""

    policy: EvictionPolicy = ClassedEviction()

    def __init__(self) -> None:
        super().__init__()
        self.guard = 2
        self.blocks = ClassedFreeList(_BLOCKS, policy=self.policy, guard_blocks=self.guard)
        self.free = list(range(_BLOCKS))
        self.labels = [UNCACHED] * _BLOCKS

    def _expected(self) -> list[int]:
        return sorted(self.free, key=lambda block: self.policy.rank(self.labels[block]))

    def _relabel(self, block: int, label: BlockLabel) -> None:
        moved = self.policy.rank(label) != self.policy.rank(self.labels[block])
        self.labels[block] = label
        if moved and block in self.free:
            self.free.remove(block)
            self.free.append(block)
        self._age()

    def _age(self) -> None:
        guarded = [
            block
            for block in self.free
            if self.policy.rank(self.labels[block]) == self.policy.guard_rank
        ]
        for block in guarded[: max(0, len(guarded) - self.guard)]:
            self._relabel(block, self.labels[block]._replace(aged=True))

    def _use(self, blocks: list[int]) -> None:
        for block in blocks:
            self.labels[block] = self.labels[block]._replace(aged=False)

    @precondition(lambda self: self.free)
    @rule()
    def pop(self) -> None:
        block = self._expected()[0]
        assert self.blocks.popleft() == block
        self.free.remove(block)
        self.labels[block] = UNCACHED

    @rule(count=st.integers(0, 3))
    def pop_some(self, count: int) -> None:
        if count > len(self.free):
            with pytest.raises(CapacityError, match=f"{count} KV blocks"):
                self.blocks.popleft_n(count)
            return
        taken = self._expected()[:count]
        assert self.blocks.popleft_n(count) == taken
        for block in taken:
            self.free.remove(block)
            self.labels[block] = UNCACHED

    @rule(block=st.integers(0, _BLOCKS - 1))
    def hit_or_free(self, block: int) -> None:
        if block in self.free:
            self.blocks.remove(block)
            self.free.remove(block)
        else:
            self.blocks.append(block)
            self._use([block])
            self.free.append(block)
            self._age()

    @rule(guard=st.integers(0, 4))
    def guard_fewer_or_more(self, guard: int) -> None:
        self.blocks.set_guard(guard)
        self.guard = guard
        self._age()

    @rule(first=st.booleans(), order=st.permutations(range(_BLOCKS)), count=st.integers(0, 3))
    def free_many(self, first: bool, order: list[int], count: int) -> None:
        held = [block for block in order if block not in self.free][:count]
        self._use(held)
        if first:
            self.blocks.prepend_n(held)
            self.free[:0] = held
            self._age()
        else:
            self.blocks.append_n(held)
            for block in held:
                self.free.append(block)
                self._age()

    @rule(order=st.permutations(range(_BLOCKS)), wanted=st.lists(st.integers(0, 3), max_size=3))
    def free_many_with_their_counts(self, order: list[int], wanted: list[int]) -> None:
        """As if the counts had been told while the blocks were held."""
        held = [block for block in order if block not in self.free][: len(wanted)]
        self.blocks.append_wanted(held, wanted[: len(held)])
        for block, references in zip(held, wanted, strict=False):
            self.labels[block] = self.labels[block]._replace(references=references)
            self._use([block])
            self.free.append(block)
            self._age()

    @rule(online=st.booleans(), count=st.integers(1, 3))
    def cache_held(self, online: bool, count: int) -> None:
        held = [block for block in range(_BLOCKS) if block not in self.free][:count]
        self.blocks.mark_held_cached(held, online=online)
        for block in held:
            self.labels[block] = BlockLabel(cached=True, online=online, references=0)

    @rule(block=st.integers(0, _BLOCKS - 1), online=st.booleans(), references=st.integers(0, 3))
    def cache(self, block: int, online: bool, references: int) -> None:
        self.blocks.mark_cached(block, online=online, references=references)
        self._relabel(block, BlockLabel(cached=True, online=online, references=references))

    @rule(block=st.integers(0, _BLOCKS - 1))
    def adopt(self, block: int) -> None:
        self.blocks.mark_online(block)
        self._relabel(block, self.labels[block]._replace(online=True))

    @rule(block=st.integers(0, _BLOCKS - 1), references=st.integers(0, 40))
    def count(self, block: int, references: int) -> None:
        self.blocks.set_references(block, references)
        self._relabel(block, self.labels[block]._replace(references=references))

    @rule(block=st.integers(0, _BLOCKS - 1))
    def reset(self, block: int) -> None:
        self.blocks.reset(block)
        self._relabel(block, UNCACHED)

    @invariant()
    def same_order(self) -> None:
        expected = self._expected()
        assert list(self.blocks) == expected
        assert len(self.blocks) == self.blocks.num_free == len(expected)
        assert [block in self.blocks for block in range(_BLOCKS)] == [
            block in self.free for block in range(_BLOCKS)
        ]
        assert [self.blocks.label(block) for block in range(_BLOCKS)] == self.labels
        for at, block in enumerate(expected):
            assert list(self.blocks.iter_after(block)) == expected[at + 1 :]


class _LruAgainstModel(_AgainstModel):
    policy = LruEviction()


class _GuardAgainstModel(_AgainstModel):
    policy = ClassedEviction(guard_online=True)


TestGuardedFreeList = _GuardAgainstModel.TestCase
TestGuardedFreeList.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestClassedFreeList = _AgainstModel.TestCase
TestClassedFreeList.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLruFreeList = _LruAgainstModel.TestCase
TestLruFreeList.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def test_six_blocks_leave_in_echo_order() -> None:
    """Echo §4.2 on a six-block table; the example is ours (the paper's is a figure)."""
    blocks = ClassedFreeList(6)
    table = {  # block: (cached, online, references), last used in this order
        4: (True, False, 2),
        0: (True, False, 1),
        3: (True, True, 0),
        5: (True, False, 0),
        1: (True, True, 0),
        2: (False, False, 0),
    }
    blocks.popleft_n(6)
    for block, (cached, online, references) in table.items():
        if cached:
            blocks.mark_cached(block, online=online, references=references)
        blocks.append(block)
    # uncached; offline that nobody wants; online, the older first; wanted by 1; wanted by 2
    assert blocks.popleft_n(6) == [2, 5, 3, 1, 0, 4]


def test_the_guard_keeps_the_online_blocks_used_last() -> None:
    """Ours: two of three online blocks are guarded; a wanted offline block leaves before them."""
    blocks = ClassedFreeList(5, policy=ClassedEviction(guard_online=True), guard_blocks=2)
    blocks.popleft_n(5)
    blocks.mark_cached(0, online=False, references=9)
    blocks.mark_cached(1, online=False, references=0)
    for block in (2, 3, 4):
        blocks.mark_cached(block, online=True, references=0)
    blocks.append_n(range(5))
    assert list(blocks) == [1, 2, 0, 3, 4]  # 2 is the oldest of online, so it has aged
    blocks.remove(2)
    blocks.append(2)
    assert list(blocks) == [1, 3, 0, 4, 2]  # used again, guarded again
    blocks.remove(3)
    blocks.prepend_n([3])
    assert list(blocks) == [1, 3, 0, 4, 2]  # put back as the oldest, it ages at once


def test_lru_gives_up_the_oldest_whoever_wants_it() -> None:
    blocks = ClassedFreeList(3, policy=LruEviction())
    blocks.popleft_n(3)
    for block, references in ((1, 5), (0, 0), (2, 1)):
        blocks.mark_cached(block, online=False, references=references)
        blocks.append(block)
    assert blocks.popleft_n(3) == [1, 0, 2]


def test_a_hash_that_somebody_starts_to_want_is_kept_longer() -> None:
    blocks = ClassedFreeList(2)
    blocks.mark_cached(0, online=False, references=0)
    blocks.mark_cached(1, online=False, references=0)
    blocks.set_references(0, 1)
    assert list(blocks) == [1, 0]
    blocks.set_references(0, 0)
    assert list(blocks) == [1, 0]  # the change was an access: it is now the younger one


def test_only_some_blocks_may_be_free_at_the_start() -> None:
    blocks = ClassedFreeList(4, free=[3, 1])
    assert list(blocks) == [3, 1]


def test_freeing_twice_and_taking_what_is_not_free_name_the_block() -> None:
    blocks = ClassedFreeList(2)
    with pytest.raises(InvariantError, match="block 1 was freed twice, 2 are free"):
        blocks.append(1)
    blocks.remove(1)
    with pytest.raises(InvariantError, match="block 1 is not in the free list of 1"):
        blocks.remove(1)
    with pytest.raises(InvariantError, match="block 1 is not in the free list"):
        blocks.iter_after(1)
    blocks.popleft()
    with pytest.raises(CapacityError, match="1 KV block was asked for and 0 are free"):
        blocks.popleft()


def test_ranks_rise_with_the_count_and_stay_bounded() -> None:
    policy = ClassedEviction()
    ranks = [count_rank(count) for count in range(100_000)]
    assert ranks == sorted(ranks)
    assert ranks[:18] == list(range(18))
    wanted = [
        policy.rank(BlockLabel(cached=True, online=False, references=10**e)) for e in range(9)
    ]
    assert wanted == sorted(wanted)
    assert max(wanted) == policy.ranks - 2  # the last one is the guard's


def test_a_block_freed_twice_is_a_defect() -> None:
    blocks = ClassedFreeList(_BLOCKS, policy=ClassedEviction())
    block = blocks.popleft()
    blocks.append_wanted([block], [3])
    with pytest.raises(InvariantError, match=f"block {block} was freed twice, {_BLOCKS} are free"):
        blocks.append_wanted([block], [3])
