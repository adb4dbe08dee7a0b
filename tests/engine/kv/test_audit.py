"""The audit finds each broken sum and says the numbers (design §3, rules 1 and 2)."""

from collections.abc import Callable

import pytest

from weir_engine.errors import InvariantError
from weir_engine.ids import RequestId
from weir_engine.kv.audit import audit
from weir_engine.kv.block import BlockTable
from weir_engine.kv.free_list import ClassedFreeList
from weir_engine.kv.prefix_index import PrefixIndex

_A, _B = RequestId("a"), RequestId("b")


class _World:
    """Four blocks: a (online) holds 0 and 1, b (offline) holds 1 and 2; 1 is a cached prefix."""

    def __init__(self) -> None:
        self.table = BlockTable(4)
        self.free = ClassedFreeList(4)
        self.index = PrefixIndex()
        self.holdings: dict[RequestId, tuple[list[int], bool]] = {
            _A: ([0, 1], True),
            _B: ([1, 2], False),
        }
        for block in (0, 1, 2):
            self.free.remove(block)
        for blocks, online in self.holdings.values():
            for block in blocks:
                self.table.take(block, online=online)
        self.cache(1, 77)

    def cache(self, block: int, block_hash: int) -> None:
        self.table.hashes[block] = block_hash
        self.index.put_all([block_hash], [block])
        self.free.mark_cached(block, online=True, references=0)

    def audit(self) -> None:
        audit(table=self.table, free=self.free, index=self.index, holdings=self.holdings)


def _hold_twice(world: _World) -> None:
    world.holdings[_A] = ([0, 0, 1], True)


def _lose_a_block(world: _World) -> None:
    world.free.remove(3)


def _miscount(world: _World) -> None:
    world.table.take(2, online=False)


def _free_a_held_block(world: _World) -> None:
    world.free.append(2)
    world.free.remove(3)


def _share_unhashed(world: _World) -> None:
    world.holdings[_B] = ([0, 1, 2], False)
    world.table.take(0, online=False)


def _mislabel(world: _World) -> None:
    world.free.reset(1)


def _misindex(world: _World) -> None:
    world.index.drop(77, 1)
    world.index.put_all([77], [2])


def _index_too_much(world: _World) -> None:
    world.index.put_all([78], [3])


def _forget_the_adoption(world: _World) -> None:
    world.table._adopted[0] = 0


def _miscount_offline_only(world: _World) -> None:
    world.table.offline_only = 5


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_hold_twice, r"rule 1: request a holds a block twice: \[0, 0, 1\]"),
        (_lose_a_block, r"rule 2: 3 held \+ 0 free \(counted 0\) is not 4"),
        (_miscount, r"block 2 counts \(0, 2\) .* sum 2; its holders are \(0, 1\)"),
        (_free_a_held_block, r"rule 2: block 2 has 1 holders, free: True"),
        (_share_unhashed, r"rule 1: block 0 has 2 holders and no hash"),
        (_mislabel, r"block 1 is labelled .* and its hash is 77"),
        (_misindex, r"hash 77 of block 1 is indexed as 2"),
        (_index_too_much, r"1 blocks carry a hash and the index has 2"),
        (_forget_the_adoption, r"block 0 has \(1, 0\) .* holders, counts as online's: False"),
        (_miscount_offline_only, r"5 blocks offline only, counted 1"),
    ],
)
def test_each_broken_sum_is_found(damage: Callable[[_World], None], message: str) -> None:
    world = _World()
    world.audit()
    damage(world)
    with pytest.raises(InvariantError, match=message):
        world.audit()


def test_giving_back_a_reference_that_is_not_there_says_the_counts() -> None:
    table = BlockTable(2)
    table.take(1, online=True)
    with pytest.raises(InvariantError, match="block 1 has 1 online and 0 offline references"):
        table.release(1, online=False)


def test_offline_only_follows_every_reference() -> None:
    table = BlockTable(1)
    seen = []
    for online in (False, False, True, True):
        table.take(0, online=online)
        seen.append(table.offline_only)
    for online in (True, True, False, False):
        table.release(0, online=online)
        seen.append(table.offline_only)
    assert seen == [1, 1, 0, 0, 0, 0, 0, 0]  # online's until it is free
    table.take(0, online=False)
    assert table.offline_only == 1


def test_a_hash_is_dropped_only_by_its_block() -> None:
    index = PrefixIndex()
    assert index.put_all([7], [1]) == [(7, 1)]
    assert index.put_all([7, 8], [2, 3]) == [(8, 3)]
    assert index.find([8, 9, 7]) == [3, None, 1]
    with pytest.raises(InvariantError, match="hash of block 2 is indexed as block 1"):
        index.drop(7, 2)
