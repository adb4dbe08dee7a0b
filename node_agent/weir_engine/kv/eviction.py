"""In which order free KV blocks are given up: pure functions from a block's label to its rank.

The free list keeps one bucket a rank and evicts the lowest rank first; ties go by last access.
Nothing here knows a block or a list.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

_RANK_UNCACHED = 0
_RANK_OFFLINE = 1
_RANK_ONLINE = 2
_RANK_REFERENCED = 3

_EXACT_COUNTS = 16
"""Counts up to this one have a rank each; above it, a rank for each doubling."""

_DOUBLINGS = 16
"""Doublings told apart above the exact counts: the largest pool is far below 16 x 2^16."""

_RANK_GUARDED = _RANK_REFERENCED + _EXACT_COUNTS + _DOUBLINGS


class BlockLabel(NamedTuple):
    """What eviction knows of a free block.

    ``cached``: it holds computed KV under a hash. ``online``: an online request wrote or adopted
    it since its hash was set. ``references``: waiting or windowed offline requests whose prompt
    holds that hash, >= 0. ``aged``: younger online blocks pushed it out of the guard.
    """

    cached: bool
    online: bool
    references: int
    aged: bool = False


UNCACHED = BlockLabel(cached=False, online=False, references=0)
"""The label of a block without a hash."""


def count_rank(references: int) -> int:
    """The rank of a reference count among counts: 0 for none, rising, bounded.

    Counts to 16 differ by one each; above, each doubling is a rank. Bounded so that a free list
    has a fixed number of buckets.
    """
    if references <= _EXACT_COUNTS:
        return max(references, 0)
    doublings = (references - 1).bit_length() - _EXACT_COUNTS.bit_length() + 1
    return _EXACT_COUNTS + min(doublings, _DOUBLINGS)


class EvictionPolicy(Protocol):
    """Fills the seat "KV eviction"."""

    @property
    def ranks(self) -> int:
        """How many ranks there are; ``rank`` gives 0 to ``ranks`` - 1."""
        ...

    @property
    def guard_rank(self) -> int | None:
        """The rank that holds a bounded number of blocks; the oldest beyond it age. None: none."""
        ...

    def rank(self, label: BlockLabel) -> int:
        """The rank of a free block; the lowest is evicted first."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassedEviction:
    """By class and reference count, then age.

    Evicted first to last: blocks without a hash; finished offline blocks that no waiting request
    wants (0); finished online blocks (0.5); blocks that waiting offline requests want, by their
    count. An online block that offline requests want ranks by its count, which is never below 0.5.
    Blocks of running requests are not free, so they have no rank.

    ``guard_online`` adds a last rank: the online blocks used last, as many as the free list is told
    to guard, are evicted after everything else. Older ones keep Echo's rank.

    Source: Echo §4.2, priority list. The guard is ours: under Echo's order a pool that wants more
    documents than fit evicts every finished conversation, and online hit rate falls with it.
    """

    guard_online: bool = False

    @property
    def ranks(self) -> int:
        """Ranks of this policy."""
        return _RANK_GUARDED + 1

    @property
    def guard_rank(self) -> int | None:
        """The rank of the online blocks used last, None without a guard."""
        return _RANK_GUARDED if self.guard_online else None

    def rank(self, label: BlockLabel) -> int:
        """The rank of a free block under Echo's order, with the guard above it."""
        if not label.cached:
            return _RANK_UNCACHED
        if self.guard_online and label.online and not label.aged:
            return _RANK_GUARDED
        if label.references > 0:
            return _RANK_REFERENCED - 1 + count_rank(label.references)
        return _RANK_ONLINE if label.online else _RANK_OFFLINE


@dataclass(frozen=True, kw_only=True, slots=True)
class LruEviction:
    """Blocks without a hash first, then by last access, whoever used them.

    Source: what vLLM does without Weir; the baseline of Echo §4.2.
    """

    @property
    def ranks(self) -> int:
        """Ranks of this policy."""
        return 2

    @property
    def guard_rank(self) -> int | None:
        """No rank is bounded."""
        return None

    def rank(self, label: BlockLabel) -> int:
        """The rank of a free block: 0 without a hash, else 1."""
        return 1 if label.cached else 0


class RankedLabels(dict[tuple[bool, bool, int, bool], tuple[BlockLabel, int]]):
    """A label with its rank, by the label's values; each is made when it is first asked for.

    Blocks are relabelled by the hundred, labels are few.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        super().__init__()
        self._policy = policy

    def __missing__(self, values: tuple[bool, bool, int, bool]) -> tuple[BlockLabel, int]:
        label = BlockLabel(*values)
        ranked = self[values] = (label, self._policy.rank(label))
        return ranked
