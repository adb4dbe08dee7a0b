"""The free KV blocks in eviction order, for ``kv.manager`` and for vLLM's block pool alike.

Blocks are integer ids. One intrusive doubly linked list a rank, in flat lists: every operation on
a block is O(1). Who references a block and which hash it holds is the owner's business.
"""

from collections.abc import Iterable, Iterator, Sequence

from weir_engine.errors import CapacityError, InvariantError
from weir_engine.kv.eviction import (
    UNCACHED,
    BlockLabel,
    ClassedEviction,
    EvictionPolicy,
    RankedLabels,
)

_NOT_FREE = -1
_NO_RANK = -1


class ClassedFreeList:
    """Free blocks, bucketed by eviction rank, oldest first within a rank.

    Ids are 0 to ``total_blocks`` - 1. ``free`` are the ids that are free at the start, in order
    (None: all). Labels are kept for every block, free or not; changing the label of a free block
    moves it to the young end of its new rank: news of a block counts as an access to it. Popping
    evicts, so it resets the label; ``remove`` (a prefix hit) keeps it. Where the policy has a guard
    rank, it holds the ``guard_blocks`` freed last; see ``set_guard``.
    """

    __slots__ = (
        "_filled",
        "_guard_blocks",
        "_guard_rank",
        "_guarded",
        "_labels",
        "_next",
        "_prev",
        "_ranked",
        "_ranks",
        "_total",
        "_uncached_rank",
        "num_free",
    )

    def __init__(
        self,
        total_blocks: int,
        *,
        policy: EvictionPolicy | None = None,
        free: Iterable[int] | None = None,
        guard_blocks: int = 0,
    ) -> None:
        policy = ClassedEviction() if policy is None else policy
        self._total = total_blocks
        # Nodes 0 .. total-1 are blocks; node total+r is the ring head of rank r.
        ring_heads = list(range(total_blocks, total_blocks + policy.ranks))
        self._next = [_NOT_FREE] * total_blocks + ring_heads
        self._prev = [_NOT_FREE] * total_blocks + ring_heads
        self._labels = [UNCACHED] * total_blocks
        self._ranked = RankedLabels(policy)
        self._uncached_rank = policy.rank(UNCACHED)
        self._ranks = [self._uncached_rank] * total_blocks
        self._filled = 0  # bit r is set while rank r holds a block
        self._guard_rank = _NO_RANK if policy.guard_rank is None else policy.guard_rank
        self._guard_blocks = guard_blocks
        self._guarded = 0  # free blocks in the guard rank
        self.num_free = 0
        self.append_n(range(total_blocks) if free is None else free)

    # -- the list ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.num_free

    def __contains__(self, block: int) -> bool:
        return 0 <= block < self._total and self._next[block] != _NOT_FREE

    def __iter__(self) -> Iterator[int]:
        """Free blocks in eviction order; the list must not change meanwhile."""
        return self._walk(None)

    def iter_after(self, block: int) -> Iterator[int]:
        """Free blocks evicted after ``block``, in eviction order.

        Raises:
            InvariantError: ``block`` is not free.
        """
        if block not in self:
            raise InvariantError(f"block {block} is not in the free list of {self.num_free}")
        return self._walk(block)

    def _walk(self, after: int | None) -> Iterator[int]:
        first_rank = 0 if after is None else self._ranks[after]
        filled = self._filled & (-1 << first_rank)
        while filled:
            rank = (filled & -filled).bit_length() - 1
            filled &= filled - 1
            head = self._total + rank
            node = self._next[head if after is None or rank > first_rank else after]
            while node != head:
                yield node
                node = self._next[node]

    def append(self, block: int) -> None:
        """Free a block as the youngest of its rank.

        Raises:
            InvariantError: it is free already.
        """
        if self._labels[block].aged:
            self._rejuvenate(block)
        rank = self._ranks[block]
        self._link(block, self._prev[self._total + rank], rank)
        self.num_free += 1
        if self._guarded > self._guard_blocks:
            self._age()

    def append_n(self, blocks: Iterable[int]) -> None:
        """Free blocks, each as the youngest of its rank: the first given is evicted first.

        Raises:
            InvariantError: one is free already.
        """
        for block in blocks:
            self.append(block)

    def append_wanted(self, blocks: Sequence[int], references: Iterable[int]) -> None:
        """As ``append_n``; so many waiting offline requests want the hash of each block now.

        For an owner that does not tell the counts of blocks that are held.

        Raises:
            InvariantError: one is free already.
        """
        labels, ranks, ranked = self._labels, self._ranks, self._ranked
        after, before = self._next, self._prev
        unguarded = self._guard_rank if self._guard_blocks == 0 else _NO_RANK
        for block, wanted in zip(blocks, references, strict=True):
            if after[block] != _NOT_FREE:
                raise InvariantError(f"block {block} was freed twice, {self.num_free} are free")
            label: tuple[bool, bool, int, bool] = labels[block]
            if label[3] or label[2] != wanted:
                label = (label[0], label[1], wanted, False)
                labels[block], ranks[block] = ranked[label]
            if ranks[block] == unguarded:  # it would age at once
                label = (label[0], label[1], wanted, True)
                labels[block], ranks[block] = ranked[label]
            rank = ranks[block]
            head = self._total + rank
            last = before[head]
            after[last] = before[head] = block
            before[block] = last
            after[block] = head
            self._filled |= 1 << rank
            self.num_free += 1
            if rank == self._guard_rank:
                self._guarded += 1
                self._age()

    def prepend_n(self, blocks: Iterable[int]) -> None:
        """Free blocks as the oldest of their ranks: the first given is evicted first.

        Raises:
            InvariantError: one is free already.
        """
        for block in reversed(list(blocks)):
            if self._labels[block].aged:
                self._rejuvenate(block)
            rank = self._ranks[block]
            self._link(block, self._total + rank, rank)
            self.num_free += 1
        self._age()

    def remove(self, block: int) -> None:
        """Take a block out because a request uses what it holds; its label stays.

        Raises:
            InvariantError: it is not free.
        """
        self._unlink(block)
        self.num_free -= 1

    def popleft(self) -> int:
        """Take and evict the block that is kept least; its label is reset.

        Raises:
            CapacityError: nothing is free.
        """
        if not self._filled:
            raise CapacityError("1 KV block was asked for and 0 are free")
        return self.popleft_n(1)[0]

    def popleft_n(self, blocks: int) -> list[int]:
        """Take and evict that many blocks, the least kept first.

        Raises:
            CapacityError: fewer are free; none is taken then.
        """
        if blocks > self.num_free:
            raise CapacityError(f"{blocks} KV blocks were asked for and {self.num_free} are free")
        taken: list[int] = []
        while len(taken) < blocks:
            self._pop(blocks - len(taken), taken)
        return taken

    def _pop(self, most: int, taken: list[int]) -> None:
        """Take up to that many blocks of the lowest rank."""
        labels, ranks, after, before = self._labels, self._ranks, self._next, self._prev
        rank = (self._filled & -self._filled).bit_length() - 1
        head = self._total + rank
        block, count = after[head], 0
        while block != head and count < most:
            taken.append(block)
            count += 1
            follower = after[block]
            after[block] = before[block] = _NOT_FREE
            if labels[block] is not UNCACHED:
                labels[block] = UNCACHED
                ranks[block] = self._uncached_rank
            block = follower
        after[head], before[block] = block, head
        if block == head:
            self._filled &= ~(1 << rank)
        if rank == self._guard_rank:
            self._guarded -= count
        self.num_free -= count

    # -- labels -----------------------------------------------------------------------------

    def label(self, block: int) -> BlockLabel:
        """What is known of the block, free or not."""
        return self._labels[block]

    def mark_cached(self, block: int, *, online: bool, references: int) -> None:
        """The block now holds computed KV under a hash, written by a request of that class."""
        self._relabel(block, (True, online, references, False))

    def mark_held_cached(self, blocks: Iterable[int], *, online: bool) -> None:
        """Blocks that are held, not free, now have computed KV under a hash, of that class.

        How many waiting requests want it is told when they are freed: see ``append_wanted``.
        """
        labels, ranks = self._labels, self._ranks
        label, rank = self._ranked[True, online, 0, False]
        for block in blocks:
            labels[block], ranks[block] = label, rank

    def mark_online(self, block: int) -> None:
        """An online request adopts the block: it is online's until its hash is reset."""
        cached, online, references, aged = self._labels[block]
        if not online:
            self._relabel(block, (cached, True, references, aged))

    def set_references(self, block: int, references: int) -> None:
        """So many waiting offline requests want the hash that the block holds now."""
        cached, online, before, aged = self._labels[block]
        if before != references:
            self._relabel(block, (cached, online, references, aged))

    def reset(self, block: int) -> None:
        """The block's hash is gone: what it holds is worth nothing."""
        self._relabel(block, UNCACHED)

    def set_guard(self, blocks: int) -> None:
        """Guard at most so many free online blocks, those freed last; the oldest beyond it age.

        An aged block falls to the rank it has without the guard, and is guarded again once it has
        been used. A larger guard takes in blocks freed from now on.
        """
        self._guard_blocks = blocks
        self._age()

    def _age(self) -> None:
        while self._guarded > self._guard_blocks:
            block = self._next[self._total + self._guard_rank]
            cached, online, references, _ = self._labels[block]
            self._relabel(block, (cached, online, references, True))

    def _rejuvenate(self, block: int) -> None:
        cached, online, references, _ = self._labels[block]
        self._labels[block], self._ranks[block] = self._ranked[cached, online, references, False]

    def _relabel(self, block: int, label: tuple[bool, bool, int, bool]) -> None:
        self._labels[block], rank = self._ranked[label]
        if rank == self._ranks[block]:
            return
        if self._next[block] == _NOT_FREE:
            self._ranks[block] = rank
            return
        self._unlink(block)  # from the rank that it is in
        self._ranks[block] = rank
        self._link(block, self._prev[self._total + rank], rank)
        if rank == self._guard_rank:
            self._age()

    # -- links ------------------------------------------------------------------------------

    def _link(self, block: int, after: int, rank: int) -> None:
        if self._next[block] != _NOT_FREE:
            raise InvariantError(f"block {block} was freed twice, {self.num_free} are free")
        before = self._next[after]
        self._next[after] = block
        self._prev[block] = after
        self._next[block] = before
        self._prev[before] = block
        self._filled |= 1 << rank
        if rank == self._guard_rank:
            self._guarded += 1

    def _unlink(self, block: int) -> None:
        after = self._next[block]
        if after == _NOT_FREE:
            raise InvariantError(f"block {block} is not in the free list of {self.num_free}")
        before = self._prev[block]
        self._next[before] = after
        self._prev[after] = before
        self._next[block] = self._prev[block] = _NOT_FREE
        if before == after:  # only the ring head is left
            self._filled &= ~(1 << self._ranks[block])
        if self._ranks[block] == self._guard_rank:
            self._guarded -= 1
