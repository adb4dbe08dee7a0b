"""Which free blocks online requests are likely to find again: pure, of block hashes and times.

What the guard keeps (``eviction``) and what the offline threshold leaves to online (``reserve``)
must cover them, or batch work evicts what the next turn of a conversation would have found.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from itertools import accumulate, islice, takewhile
from typing import Final

from weir_engine.ids import BlockHash

_SLOT_S: Final = 1.0
"""Times are told apart by this."""

_SLOTS: Final = 3600
"""What nobody asked for in an hour is not waited for."""

_LOST_HITS: Final = 0.025
"""This share of the blocks that were found may have waited longer than the window."""

_LOST_BLOCKS: Final = 0.01
"""So may this share of all blocks asked for: where few are found, fewer are worth a large cache."""

_MEMORY: Final = 4
"""After so many times the cache's blocks were asked for, what was seen counts half."""

_MARGIN: Final = 2
"""Blocks are kept for so many windows: the next wait is often longer than all that were seen."""

_MOST: Final = 0.75
_OF_TOO_LARGE: Final = 0.3
"""Shares of the cache that are kept at most, and where that would find too little."""

_ENOUGH: Final = 0.9
_TOO_LITTLE: Final = 0.8
"""Shares of what the whole cache would find: see ``OnlineReuse``."""


class OnlineReuse:
    """Blocks that finished online requests left, and how long they wait until they are found again.

    The window is the time in which nearly all of those that are found again were found; the working
    set are the blocks left within two windows, since few waits make the longest one known. So it
    follows the load: after a quiet hour it is empty. Blocks of running requests are no part of it:
    they are held. Blocks that were evicted meanwhile are, as many as the cache has: what a larger
    reserve would have saved must be seen.

    A working set of up to three quarters of the cache is kept whole. Of a larger one three quarters
    of the cache are, if nearly all that the whole cache would find was left that lately; where much
    would be lost all the same it is the newest, three tenths of the cache, and in between it falls.

    Source: the working set of Denning, "The working set model for program behavior", 1968, with a
    measured window.
    """

    __slots__ = ("_asked", "_found", "_left", "_left_in", "_newest", "_total")

    def __init__(self, total_blocks: int) -> None:
        self._total = total_blocks
        # The slot in which it was left, oldest first. A plain dict looks for its oldest entry past
        # all that were deleted before: tens of milliseconds for the blocks of one request.
        self._left_in: OrderedDict[BlockHash, int] = OrderedDict()
        self._left: deque[int] = deque([0])  # blocks of each slot, the newest first
        self._newest = 0  # the number of the newest slot
        self._found = [0.0] * _SLOTS  # blocks found, by the slots that they had waited
        self._asked = 0.0

    def kept_blocks(self, now_s: float) -> int:
        """Blocks worth keeping free; 0 while nothing was found again."""
        self._advance(now_s)
        working_set = sum(islice(self._left, _MARGIN * self._window()))
        most = int(_MOST * self._total)
        if working_set <= most:
            return working_set
        worth = (self._found_among(most) - _TOO_LITTLE) / (_ENOUGH - _TOO_LITTLE)
        share = _OF_TOO_LARGE + (_MOST - _OF_TOO_LARGE) * min(max(worth, 0.0), 1.0)
        return int(share * self._total)

    def asked(self, hashes: Iterable[BlockHash], now_s: float, *, again: bool = False) -> None:
        """An online request came to run with these blocks in its prompt and holds them now.

        ``again``: it was preempted; finding its own blocks is no reuse.
        """
        self._advance(now_s)
        asked, found = 0, Counter[int]()
        for block_hash in hashes:
            asked += 1
            slot = self._left_in.pop(block_hash, None)
            if slot is not None:
                found[self._newest - slot] += 1
        for waited, blocks in found.items():
            if waited < len(self._left):
                self._left[waited] -= blocks
                if not again:
                    self._found[waited] += blocks
        if not again:
            self._asked += asked
            if self._asked > _MEMORY * self._total:
                self._asked /= 2
                self._found = [blocks / 2 for blocks in self._found]

    def left(self, hashes: Iterable[BlockHash], now_s: float) -> None:
        """An online request gave these blocks back."""
        self._advance(now_s)
        for block_hash in hashes:
            self._drop(block_hash)
            self._left_in[block_hash] = self._newest
            self._left[0] += 1
        while len(self._left_in) > self._total:
            self._drop(next(iter(self._left_in)))

    def clear(self) -> None:
        """The cache was emptied; what is known of waiting stays."""
        self._left_in.clear()
        self._left = deque([0])

    def _window(self) -> int:
        """Slots, the newest first, in which nearly all found blocks had been left."""
        lost = max(_LOST_HITS * sum(self._found), _LOST_BLOCKS * self._asked)
        for waited in range(_SLOTS - 1, -1, -1):
            lost -= self._found[waited]
            if lost < 0:
                return waited + 1
        return 0

    def _found_among(self, blocks: int) -> float:
        """The share of the found blocks that were among the so many left last."""
        slots = zip(accumulate(self._left), self._found, strict=False)
        among = takewhile(lambda slot: slot[0] <= blocks, slots)
        return sum(found for _, found in among) / sum(self._found)

    def _advance(self, now_s: float) -> None:
        slot = int(now_s // _SLOT_S)
        for _ in range(min(slot - self._newest, _SLOTS)):
            self._left.appendleft(0)
        self._newest = max(self._newest, slot)
        while len(self._left) > _SLOTS:
            self._left.pop()

    def _drop(self, block_hash: BlockHash) -> None:
        slot = self._left_in.pop(block_hash, None)
        if slot is not None and self._newest - slot < len(self._left):
            self._left[self._newest - slot] -= 1
