"""Who references each KV block, by class, and which hash it holds. Flat lists by block id.

Order of eviction belongs to ``free_list``, lookup by hash to ``prefix_index``.
"""

from collections.abc import Iterable

from weir_engine.errors import InvariantError
from weir_engine.ids import BlockHash


class BlockTable:
    """Online and offline reference counts and the hash of every block.

    ``offline_only`` counts the blocks that are offline's alone: what the offline threshold bounds.
    A block that online references as well is online's, and stays so after the online request ended
    until nobody references it: an online request that ends must not push offline work over its
    threshold. Cached blocks that nobody references are in neither class.
    """

    __slots__ = ("_adopted", "_online", "hashes", "offline_only", "references")

    def __init__(self, total_blocks: int) -> None:
        self._online = [0] * total_blocks
        self._adopted = bytearray(total_blocks)  # 1: online referenced it since it was last free
        self.references = [0] * total_blocks  # of both classes
        self.hashes: list[BlockHash | None] = [None] * total_blocks
        self.offline_only = 0

    def online(self, block: int) -> int:
        """Online requests that reference the block."""
        return self._online[block]

    def offline(self, block: int) -> int:
        """Offline requests that reference the block."""
        return self.references[block] - self._online[block]

    def adopted(self, block: int) -> bool:
        """True when the block counts as online's: online referenced it since it was last free."""
        return self._adopted[block] == 1

    def take(self, block: int, *, online: bool) -> None:
        """Count one more reference of that class."""
        self.take_all((block,), online=online)

    def take_all(self, blocks: Iterable[int], *, online: bool) -> None:
        """Count one more reference of that class to each of different blocks."""
        references, adopted, own = self.references, self._adopted, self._online
        offline_only = self.offline_only
        for block in blocks:
            before = references[block]
            references[block] = before + 1
            if online:
                own[block] += 1
                if not adopted[block]:
                    adopted[block] = 1
                    offline_only -= before > 0
            elif not before:
                offline_only += 1
        self.offline_only = offline_only

    def release_all(self, blocks: Iterable[int], *, online: bool) -> list[int]:
        """Count one reference less to each of some blocks; those that have none left, in order.

        Raises:
            InvariantError: the class has no reference to give back.
        """
        references, adopted, own = self.references, self._adopted, self._online
        free = []
        for block in blocks:
            left = references[block] - 1
            if (own[block] if online else left - own[block] + 1) < 1:
                raise InvariantError(
                    f"block {block} has {self.online(block)} online and {self.offline(block)} "
                    f"offline references, and one more was given back (online: {online})"
                )
            references[block] = left
            if online:
                own[block] -= 1
            if not left:
                free.append(block)
                self.offline_only -= not adopted[block]
                adopted[block] = 0
        return free

    def release(self, block: int, *, online: bool) -> bool:
        """Count one reference less; True when none is left.

        Raises:
            InvariantError: the class has no reference to give back.
        """
        return bool(self.release_all((block,), online=online))
