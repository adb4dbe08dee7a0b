"""The prefix tree of a whole batch as arrays: one numpy pass a level, 400,000 prompts in seconds.

Structure only; costs, sorting and splitting are in ``blend_order``. Waiting requests of a running
engine are kept in ``prefix_tree``.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weir_engine.errors import ConfigError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """Prompts as the tree is made from: ``hashes`` of all full blocks, one prompt after the other.

    The hashes of prompt i are ``hashes[offsets[i]:offsets[i + 1]]``, chained: equal hashes mean
    equal prefixes. ``offsets`` is ``(n + 1,)`` int64, ``tokens`` ``(n,)`` int64, 1 or more each.

    Raises:
        ConfigError: lengths that contradict each other, or an empty prompt.
    """

    hashes: Ints
    offsets: Ints
    tokens: Ints
    block_size_tokens: int

    def __post_init__(self) -> None:
        if self.offsets.size != self.tokens.size + 1 or self.offsets[-1] != self.hashes.size:
            raise ConfigError(
                f"prompts: {self.offsets.size} offsets up to {self.offsets[-1]} for "
                f"{self.tokens.size} prompts of {self.hashes.size} blocks: give one more offset "
                "than prompts, the last one the number of blocks"
            )
        blocks = np.diff(self.offsets)
        if self.tokens.size and (
            self.tokens.min() < 1 or bool((blocks * self.block_size_tokens > self.tokens).any())
        ):
            raise ConfigError("prompts: give 1 token or more, and only hashes of full blocks")

    def __len__(self) -> int:
        return int(self.tokens.size)

    @classmethod
    def of(
        cls, prompts: Iterable[tuple[Sequence[int], int]], *, block_size_tokens: int
    ) -> "Prompts":
        """From (hashes of the full blocks, prompt tokens), one a prompt."""
        given = list(prompts)
        offsets = np.zeros(len(given) + 1, dtype=np.int64)
        np.cumsum([len(hashes) for hashes, _ in given], out=offsets[1:])
        return cls(
            hashes=np.array([h for hashes, _ in given for h in hashes], dtype=np.int64),
            offsets=offsets,
            tokens=np.array([tokens for _, tokens in given], dtype=np.int64),
            block_size_tokens=block_size_tokens,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DensityTree:
    """A compressed prefix tree; node 0 is the root, and each level's nodes follow each other.

    ``parent`` ``(nodes,)``: the root is its own parent. ``end_tokens`` ``(nodes,)``: length of the
    prefix at the node's end. ``start_tokens`` ``(nodes,)``: where its own tokens start; a leaf
    computes at least one. ``leaf`` ``(n,)``: the node of each request, its own. ``levels``: bounds
    of the levels, ``levels[k]`` to ``levels[k + 1]``.
    """

    parent: Ints
    start_tokens: Ints
    end_tokens: Ints
    leaf: Ints
    levels: tuple[int, ...]

    @property
    def nodes(self) -> int:
        """Nodes, the root and the leaves counted: at most two a request."""
        return int(self.parent.size)

    @property
    def root_sharing(self) -> float:
        """Prompt tokens that an unbounded cache saves, over all prompt tokens."""
        prompt = float(self.end_tokens[self.leaf].sum())
        return 1 - float((self.end_tokens - self.start_tokens).sum()) / prompt if prompt else 0.0

    def downwards(self) -> Iterator[slice]:
        """The levels below the root, from the top."""
        for start, end in zip(self.levels[1:-1], self.levels[2:], strict=True):
            yield slice(start, end)

    def subtree_sums(self, own: Floats) -> Floats:
        """Sums over each node's subtree, itself included, of a value a node."""
        sums = own.copy()
        for level in reversed(list(self.downwards())):
            np.add.at(sums, self.parent[level], sums[level])
        return sums

    def children(self) -> Ints:
        """Number of children of each node."""
        counts = np.bincount(self.parent, minlength=self.nodes)
        counts[0] -= 1  # the root is its own parent
        return counts

    def leaves(self) -> Ints:
        """Number of requests below each node."""
        ones = np.zeros(self.nodes)
        ones[self.leaf] = 1.0
        return self.subtree_sums(ones).astype(np.int64)

    def families(self) -> Ints:
        """The child of the root that each request is under, as a node, ``(n,)``."""
        top = np.arange(self.nodes)
        for level in list(self.downwards())[1:]:
            top[level] = top[self.parent[level]]
        return top[self.leaf]

    def depth_first(self, key: Floats) -> Ints:
        """Requests in depth-first order; of siblings the one with the smaller key goes first.

        Equal keys go in order of the requests.
        """
        leaves = self.leaves()
        first = self._first_request()
        start = np.zeros(self.nodes, dtype=np.int64)
        for level in self.downwards():
            parent = self.parent[level]
            order = np.lexsort((first[level], key[level], start[parent]))
            counts = leaves[level][order]
            above = parent[order]
            before = np.cumsum(counts) - counts
            heads = np.flatnonzero(np.r_[True, above[1:] != above[:-1]])
            spans = np.diff(np.r_[heads, order.size])
            begun = np.repeat(before[heads], spans)
            start[level.start + order] = start[above] + before - begun
        return np.argsort(start[self.leaf], kind="stable")

    def _first_request(self) -> Ints:
        """The least request below each node."""
        first = np.full(self.nodes, self.leaf.size, dtype=np.int64)
        first[self.leaf] = np.arange(self.leaf.size)
        for level in reversed(list(self.downwards())):
            np.minimum.at(first, self.parent[level], first[level])
        return first


def build_tree(prompts: Prompts) -> DensityTree:
    """The prefix tree of prompts: O(levels × log(longest) × prompts), a few arrays of memory.

    A level of the tree costs one sort and a binary search, both over all prompts that still share
    something, so the number of blocks that prompts share does not matter.

    Source: BlendServe §3.1; "Offline prefix tree" of §4. Ours: whole levels at once.
    """
    builder = _Builder(prompts)
    builder.run()
    return builder.tree()


class _Builder:
    """Grows the tree level by level; private to one ``build_tree``.

    ``members`` are the requests still to place, grouped: ``group`` has their node, ascending.
    """

    def __init__(self, prompts: Prompts) -> None:
        count = len(prompts)
        self._hashes = prompts.hashes
        self._first = prompts.offsets[:-1]
        self._blocks = np.diff(prompts.offsets)
        self._tokens = prompts.tokens
        self._size = prompts.block_size_tokens
        self._leaf = np.zeros(count, dtype=np.int64)
        self._parents = [np.zeros(1, dtype=np.int64)]
        self._ends = [np.zeros(1, dtype=np.int64)]
        self._levels = [0, 1]

    def run(self) -> None:
        members = np.arange(self._leaf.size)
        group = np.zeros_like(members)
        depth = np.zeros_like(members)
        while members.size:
            members, group, depth = self._level(members, group, depth)

    def _level(self, members: Ints, group: Ints, depth: Ints) -> tuple[Ints, Ints, Ints]:
        """Add the children of all groups; returns those that still share, with their groups."""
        key, ended = self._keys(members, depth)
        order = np.lexsort((key, ended, group))
        members, group, key, ended, depth = (
            values[order] for values in (members, group, key, ended, depth)
        )
        new = np.ones(members.size, dtype=np.bool_)
        new[1:] = (group[1:] != group[:-1]) | (key[1:] != key[:-1]) | ended[1:] | ended[:-1]
        heads = np.flatnonzero(new)
        sizes = np.diff(np.r_[heads, members.size])
        node = self._levels[-1] + np.cumsum(new) - 1
        alone = sizes == 1
        lonely = np.repeat(alone, sizes)
        end_tokens = np.where(alone, self._tokens[members[heads]], 0)
        self._leaf[members[lonely]] = node[lonely]
        rest, parents = members[~lonely], group[heads]
        bounds = np.cumsum(sizes[~alone]) - sizes[~alone]
        shared = self._shared(rest, bounds, sizes[~alone], depth[heads][~alone] + 1)
        end_tokens[~alone] = shared * self._size
        self._parents.append(parents)
        self._ends.append(end_tokens)
        self._levels.append(self._levels[-1] + heads.size)
        return rest, node[~lonely], np.repeat(shared, sizes[~alone])

    def _keys(self, members: Ints, depth: Ints) -> tuple[Ints, Bools]:
        """The next hash of each member, and whether it has none: such a one is a leaf."""
        ended = self._blocks[members] <= depth
        if not self._hashes.size:
            return np.zeros_like(members), ended
        at = np.minimum(self._first[members] + depth, self._hashes.size - 1)
        return np.where(ended, 0, self._hashes[at]), ended

    def _shared(self, members: Ints, heads: Ints, sizes: Ints, least: Ints) -> Ints:
        """Blocks that all members of each group share; ``least`` are known to be."""
        if not members.size:
            return least
        low = least.copy()
        high = np.minimum.reduceat(self._blocks[members], heads)
        lead = np.repeat(self._first[members[heads]], sizes)
        own = self._first[members]
        while bool((low < high).any()):
            middle = (low + high + 1) // 2
            at = np.repeat(middle, sizes) - 1
            equal = self._hashes[own + at] == self._hashes[lead + at]
            same = np.logical_and.reduceat(equal, heads)
            low = np.where(same, middle, low)
            high = np.where(same, high, middle - 1)
        return low

    def tree(self) -> DensityTree:
        parent = np.concatenate(self._parents)
        end_tokens = np.concatenate(self._ends)
        start_tokens = end_tokens[parent]
        own = (self._tokens - 1) // self._size * self._size
        start_tokens[self._leaf] = np.minimum(start_tokens[self._leaf], own)
        return DensityTree(
            parent=parent,
            start_tokens=start_tokens,
            end_tokens=end_tokens,
            leaf=self._leaf,
            levels=tuple(self._levels),
        )
