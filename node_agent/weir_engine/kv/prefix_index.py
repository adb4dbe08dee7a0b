"""Which block holds the computed KV of a hash.

Only computed blocks are in it; who uses them, and when they are evicted, is decided elsewhere.
"""

from collections.abc import Sequence

from weir_engine.errors import InvariantError
from weir_engine.ids import BlockHash


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

    def match(self, hashes: Sequence[BlockHash], limit: int) -> list[int]:
        """Blocks of the longest cached prefix of at most ``limit`` hashes."""
        get = self._blocks.get
        found: list[int] = []
        for block_hash in hashes if limit >= len(hashes) else hashes[:limit]:
            block = get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def put(self, block_hash: BlockHash, block: int) -> bool:
        """Index a computed block; False when another block holds that hash already."""
        return self._blocks.setdefault(block_hash, block) == block

    def drop(self, block_hash: BlockHash, block: int) -> None:
        """Forget the block's hash.

        Raises:
            InvariantError: the hash is not there, or another block's.
        """
        known = self._blocks.pop(block_hash, None)
        if known != block:
            raise InvariantError(f"hash of block {block} is indexed as block {known}")
