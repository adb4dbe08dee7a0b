"""The sums that must hold over KV blocks after every step (design §3, rules 1 and 2).

A broken one is a defect and raises with its numbers.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from weir_engine.errors import InvariantError
from weir_engine.ids import RequestId
from weir_engine.kv.block import BlockTable
from weir_engine.kv.free_list import ClassedFreeList
from weir_engine.kv.prefix_index import PrefixIndex


def audit(
    *,
    table: BlockTable,
    free: ClassedFreeList,
    index: PrefixIndex,
    holdings: Mapping[RequestId, tuple[Sequence[int], bool]],
    both_ends: frozenset[int] = frozenset(),
) -> None:
    """Compare counts, free list and index with what the requests hold.

    ``holdings`` maps a request to its blocks and whether it is online; ``both_ends`` are the blocks
    that one online and one offline request fill together. O(blocks).

    Raises:
        InvariantError: with the block and the numbers that disagree.
    """
    online: Counter[int] = Counter()
    offline: Counter[int] = Counter()
    for request_id, (blocks, is_online) in holdings.items():
        if len(set(blocks)) != len(blocks):
            raise InvariantError(f"rule 1: request {request_id} holds a block twice: {blocks}")
        (online if is_online else offline).update(blocks)
    total = len(table.hashes)
    held = len(online.keys() | offline.keys())
    listed = list(free)
    if held + len(listed) != total or free.num_free != len(listed):
        raise InvariantError(
            f"rule 2: {held} held + {len(listed)} free (counted {free.num_free}) is not {total}"
        )
    for block in range(total):
        expected = (online[block], offline[block])
        _audit_block(block, expected, table, free)
        private = table.hashes[block] is None
        if private and sum(expected) > 1 and not (block in both_ends and expected == (1, 1)):
            raise InvariantError(
                f"rule 1: block {block} has {sum(expected)} holders and no hash: neither a shared "
                "prefix nor filled from both ends"
            )
    _audit_index(table, free, index)
    offline_only = sum(1 for block in offline if not table.adopted(block))
    if offline_only != table.offline_only:
        raise InvariantError(f"{table.offline_only} blocks offline only, counted {offline_only}")


def _audit_block(
    block: int, expected: tuple[int, int], table: BlockTable, free: ClassedFreeList
) -> None:
    counts = (table.online(block), table.offline(block))
    if counts != expected or table.references[block] != sum(expected):
        raise InvariantError(
            f"block {block} counts {counts} (online, offline) references, sum "
            f"{table.references[block]}; its holders are {expected}"
        )
    if table.adopted(block) < (expected[0] > 0) or table.adopted(block) > (sum(expected) > 0):
        raise InvariantError(
            f"block {block} has {expected} (online, offline) holders, counts as online's: "
            f"{table.adopted(block)}"
        )
    if (block in free) == (sum(expected) > 0):
        raise InvariantError(
            f"rule 2: block {block} has {sum(expected)} holders, free: {block in free}"
        )


def _audit_index(table: BlockTable, free: ClassedFreeList, index: PrefixIndex) -> None:
    hashed = 0
    for block, block_hash in enumerate(table.hashes):
        if free.label(block).cached != (block_hash is not None):
            raise InvariantError(
                f"block {block} is labelled {free.label(block)} and its hash is {block_hash!r}"
            )
        if block_hash is None:
            continue
        hashed += 1
        if index.get(block_hash) != block:
            raise InvariantError(
                f"hash {block_hash!r} of block {block} is indexed as {index.get(block_hash)}"
            )
    if hashed != len(index):
        raise InvariantError(f"{hashed} blocks carry a hash and the index has {len(index)}")
