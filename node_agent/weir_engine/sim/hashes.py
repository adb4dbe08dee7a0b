"""Block hashes of simulated prompts: equal prefixes get equal numbers, nothing else does."""

from collections.abc import Iterable

from weir_engine.ids import BlockHash
from weir_engine.sim.workload import Segment

_Piece = tuple[str, int, int]


class BlockHasher:
    """Numbers full blocks by their parent and content, in the order they are first seen."""

    __slots__ = ("_block_size_tokens", "_numbers")

    def __init__(self, block_size_tokens: int) -> None:
        self._block_size_tokens = block_size_tokens
        self._numbers: dict[tuple[int, tuple[_Piece, ...]], int] = {}

    def hashes(self, segments: Iterable[Segment]) -> list[BlockHash]:
        """The chained hashes of all full blocks, from the front."""
        size = self._block_size_tokens
        found: list[BlockHash] = []
        parent, room = 0, size
        pieces: list[_Piece] = []
        for segment in segments:
            start = 0
            while start < segment.tokens:
                end = min(segment.tokens, start + room)
                pieces.append((segment.key, start, end))
                room -= end - start
                start = end
                if room == 0:
                    parent = self._numbers.setdefault(
                        (parent, tuple(pieces)), len(self._numbers) + 1
                    )
                    found.append(parent)
                    pieces, room = [], size
        return found
