"""Where cached prefixes go on, token by token, inside the block behind their last whole one.

Prefix hits end with a whole block. Prompts that share a prefix seldom part there: what they share
of the block in which they part is cached too, in a block with another hash.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from weir_engine.ids import BlockHash, RequestId

# Blocks that are kept for one prefix, the newest: siblings share the same beginning with each.
_BRANCHES: Final = 8


class HashedBlock(Protocol):
    """A block of the cache; its hash changes, or is None, once it holds something else."""

    block_hash: Any


class Tail(NamedTuple):
    """The first ``tokens`` of ``block``, which holds them as long as its hash is ``key``."""

    block: HashedBlock
    key: Any
    tokens: int

    @property
    def holds(self) -> bool:
        """False once the block was evicted."""
        return bool(self.block.block_hash == self.key)


class _Branch(NamedTuple):
    """A block that holds ``tokens`` as long as its hash is ``key``."""

    block: HashedBlock
    key: Any
    tokens: Sequence[int]


class _Fork:
    """What goes on behind one prefix, and which requests compute a block there now."""

    __slots__ = ("branches", "leaders", "version")

    def __init__(self) -> None:
        self.branches: list[_Branch] = []
        self.leaders: tuple[RequestId, ...] = ()
        self.version = 0


class PrefixBranches:
    """The newest blocks behind each cached prefix, with their tokens.

    At most ``most_prefixes`` are kept, those that changed last. That a block was evicted is
    noticed when it is read. A version is given once, so that a prefix that was dropped and is back
    is not taken for what it was.

    Source: Weir; sharing by tokens instead of blocks: SGLang's radix tree (Zheng et al., 2024, §3).
    """

    def __init__(self, most_prefixes: int) -> None:
        self._most = most_prefixes
        # Ordered: a plain dict looks for its oldest entry past all that were deleted before.
        self._forks: OrderedDict[BlockHash, _Fork] = OrderedDict()
        self._changes = 0

    def __len__(self) -> int:
        return len(self._forks)

    def add(self, prefix: BlockHash, block: HashedBlock, tokens: Sequence[int]) -> None:
        """A block that has its hash and holds such tokens follows the prefix."""
        fork = self._fork(prefix)
        alive = [branch for branch in fork.branches if branch.block.block_hash == branch.key]
        alive.append(_Branch(block, block.block_hash, array("q", tokens)))
        fork.branches = alive[-_BRANCHES:]
        self._changed(fork)

    def expect(self, prefix: BlockHash, leader: RequestId) -> None:
        """A request computes a block behind the prefix."""
        fork = self._fork(prefix)
        fork.leaders = (*fork.leaders, leader)
        self._changed(fork)

    def expect_no_more(self, prefix: BlockHash, leader: RequestId) -> None:
        """It has computed that block, or will not."""
        fork = self._forks.get(prefix)
        if fork is not None and leader in fork.leaders:
            fork.leaders = tuple([name for name in fork.leaders if name != leader])
            self._changed(fork)

    def leaders(self, prefix: BlockHash) -> tuple[RequestId, ...]:
        """The requests that compute a block behind the prefix."""
        fork = self._forks.get(prefix)
        return () if fork is None else fork.leaders

    def version(self, prefix: BlockHash) -> int:
        """Rises whenever blocks or leaders behind the prefix change; 0 while there were none."""
        fork = self._forks.get(prefix)
        return 0 if fork is None else fork.version

    def find(self, prefix: BlockHash, tokens: Sequence[int]) -> Tail | None:
        """The block behind the prefix that begins with most of ``tokens``; None: none does."""
        fork = self._forks.get(prefix)
        best: Tail | None = None
        for block, key, held in reversed(fork.branches if fork is not None else ()):
            shared = shared_tokens(held, tokens)
            if shared > (0 if best is None else best.tokens) and block.block_hash == key:
                best = Tail(block, key, shared)
        return best

    def clear(self) -> None:
        """The cache was dropped."""
        self._forks.clear()

    def _changed(self, fork: _Fork) -> None:
        self._changes += 1
        fork.version = self._changes

    def _fork(self, prefix: BlockHash) -> _Fork:
        """The fork behind a prefix, as the one that changed last."""
        fork = self._forks.pop(prefix, None)
        if fork is None:
            fork = _Fork()
            while len(self._forks) >= self._most:
                self._forks.popitem(last=False)
        self._forks[prefix] = fork
        return fork


def shared_tokens(held: Sequence[int], tokens: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = 0
    for mine, theirs in zip(held, tokens, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
