"""Which block holds the computed KV of a hash.

Only computed blocks are in it; who uses them, and when they are evicted, is decided elsewhere.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat

from weir_engine.errors import InvariantError
from weir_engine.ids import BlockHash

_ABSENT = -1
_FIRST_PEEK = 16


class PrefixIndex:
    """One block a hash. A second block with the same content stays out of the index."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[BlockHash, int] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_hash: object) -> bool:
        return block_hash in self._blocks

    def get(self, block_hash: BlockHash) -> int | None:
        """The block that holds the hash, None if it is not cached."""
        return self._blocks.get(block_hash)

    def match(self, hashes: Sequence[BlockHash], limit: int, first: int = 0) -> list[int]:
        """Blocks of the longest cached run of hashes from the ``first`` on, up to ``limit``."""
        found: list[int] = []
        at, end, peek = first, min(limit, len(hashes)), _FIRST_PEEK
        if at >= end or hashes[at] not in self._blocks:
            return found
        get = self._blocks.get
        while at < end:  # in growing pieces: most requests find little, or nearly all
            piece = hashes[at : min(at + peek, end)]
            blocks = list(map(get, piece, repeat(_ABSENT)))
            if _ABSENT in blocks:
                found += blocks[: blocks.index(_ABSENT)]
                break
            found += blocks
            at += len(blocks)
            peek *= 4
        return found

    def find(self, hashes: Iterable[BlockHash]) -> list[int | None]:
        """The block of each hash, None for one that is not cached."""
        return list(map(self._blocks.get, hashes))

    def put_all(
        self, hashes: Sequence[BlockHash], blocks: Sequence[int]
    ) -> list[tuple[BlockHash, int]]:
        """Index computed blocks, one a hash; those whose hash no other block holds."""
        indexed = map(self._blocks.setdefault, hashes, blocks)
        return [
            (block_hash, block)
            for block_hash, block, known in zip(hashes, blocks, indexed, strict=True)
            if known == block
        ]

    def drop(self, block_hash: BlockHash, block: int) -> None:
        """Forget the block's hash.

        Raises:
            InvariantError: the hash is not there, or another block's.
        """
        known = self._blocks.pop(block_hash, None)
        if known != block:
            raise InvariantError(f"hash of block {block} is indexed as block {known}")
