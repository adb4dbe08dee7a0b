"""Block hashes of simulated prompts: equal prefixes get equal hashes, different ones others.

As an engine's they are hashes: two of the 20 million different blocks of a replica-day are equal
with a chance of about 1 in 10,000.
"""

from collections.abc import Iterable

from weir_engine.ids import BlockHash
from weir_engine.sim.workload import Segment


class BlockHasher:
    """Hashes full blocks chained to their parents; the same in every process.

    Only the keys of segments are kept, and the hashes of one first segment, since requests that
    share it follow each other: a long run has millions of blocks.
    """

    __slots__ = ("_block_size_tokens", "_first", "_first_hashes", "_numbers")

    def __init__(self, block_size_tokens: int) -> None:
        self._block_size_tokens = block_size_tokens
        self._numbers: dict[str, int] = {}
        self._first = (0, 0)
        self._first_hashes: list[int] = []

    def hashes(self, segments: Iterable[Segment]) -> list[BlockHash]:
        """The chained hashes of all full blocks, from the front."""
        size = self._block_size_tokens
        numbers = self._numbers
        found: list[int] = []
        parent, room = 0, size
        # Numbers alone are hashed: the hash of a text differs between processes.
        pieces: tuple[int, ...] = ()
        for at, segment in enumerate(segments):
            number = numbers.setdefault(segment.key, len(numbers) + 1)
            start, tokens = 0, segment.tokens
            if pieces and tokens >= room:  # fill the block that has begun
                parent = hash((parent, (*pieces, number, 0, room)))
                found.append(parent)
                start, room, pieces = room, size, ()
            if at == 0:
                found = self._first_of(number, tokens)
                parent = found[-1] if found else 0
                start = len(found) * size
            elif not pieces:
                found += _whole_blocks(parent, number, start, tokens, size)
                parent = found[-1] if found else 0
                start += (tokens - start) // size * size
            if start < tokens:
                pieces = (*pieces, number, start, tokens)
                room -= tokens - start
        return list(found)

    def _first_of(self, number: int, tokens: int) -> list[int]:
        """Of a segment at the start of a prompt."""
        if (number, tokens) != self._first:
            made = _whole_blocks(0, number, 0, tokens, self._block_size_tokens)
            self._first, self._first_hashes = (number, tokens), made
        return self._first_hashes.copy()


def _whole_blocks(parent: int, number: int, start: int, tokens: int, size: int) -> list[int]:
    """Hashes of the blocks that lie in one segment from ``start`` on, chained to ``parent``."""
    found = []
    for begin in range(start, tokens - size + 1, size):
        parent = hash((parent, number, begin, size))
        found.append(parent)
    return found
