"""Block hashes of simulated prompts: equal prefixes get equal hashes, different ones others.

As an engine's they are hashes: two of the 20 million different blocks of a replica-day are equal
with a chance of about 1 in 10,000.
"""

from collections.abc import Iterable

from weir_engine.ids import BlockHash
from weir_engine.sim.workload import Segment


class BlockHasher:
    """Hashes full blocks chained to their parents; the same in every process.

    Only the keys of segments are kept: a long run has millions of blocks.
    """

    __slots__ = ("_block_size_tokens", "_numbers")

    def __init__(self, block_size_tokens: int) -> None:
        self._block_size_tokens = block_size_tokens
        self._numbers: dict[str, int] = {}

    def hashes(self, segments: Iterable[Segment]) -> list[BlockHash]:
        """The chained hashes of all full blocks, from the front."""
        size = self._block_size_tokens
        numbers = self._numbers
        found: list[BlockHash] = []
        parent, room = 0, size
        pieces: tuple[int, ...] = ()
        for segment in segments:
            number = numbers.setdefault(segment.key, len(numbers) + 1)
            start, tokens = 0, segment.tokens
            while start < tokens:
                end = min(tokens, start + room)
                # Numbers alone are hashed: the hash of a text differs between processes.
                pieces = (*pieces, number, start, end)
                room -= end - start
                start = end
                if room == 0:
                    parent = hash((parent, pieces))
                    found.append(parent)
                    pieces, room = (), size
        return found
