"""BlendServe's order of a batch: density of every subtree, sampled outputs, sort and node split.

Pure arithmetic over a ``DensityTree``; who runs next is ``dual_scan``'s part.
"""

from dataclasses import dataclass

import numpy as np

from weir_engine.errors import ConfigError
from weir_engine.pool.density import DensityModel, blended_density
from weir_engine.pool.density_tree import Bools, DensityTree, Floats, Ints, Prompts

SAMPLED_SHARE = 0.01
"""Share of requests whose outputs are learnt by running them first (BlendServe §5.1)."""

DEFAULT_SPLIT_SHARE = 0.01
"""Prompt tokens that node splitting may recompute, over all: above it sharing falls below 97%."""

_LEAST_UNIT = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeCosts:
    """Seconds of compute- and memory-bound work of each node's subtree, ``(nodes,)`` each.

    A shared prefix counts once, where it ends. ``density`` is their ratio, infinite where a
    subtree has no memory-bound work. ``request_compute_s`` and ``request_memory_s`` ``(n,)`` are
    each request's part: its own work, and an equal part of each prefix that it shares.
    """

    compute_s: Floats
    memory_s: Floats
    density: Floats
    request_compute_s: Floats
    request_memory_s: Floats

    @property
    def root_density(self) -> float:
        """Density of the whole set."""
        return float(self.density[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class BlendOrder:
    """Requests from the most compute-bound to the most memory-bound, families together.

    ``requests`` ``(n,)``: request numbers in order. ``density`` ``(n,)``: rho of the unit that each
    place belongs to; units are contiguous. ``compute_s`` and ``memory_s`` ``(n,)``: each place's
    part of the work, see ``TreeCosts``. ``family`` ``(n,)``: equal for places whose requests share
    a prefix, as a child of the root. ``target_density``: rho of the whole set, with its sharing.
    """

    requests: Ints
    density: Floats
    compute_s: Floats
    memory_s: Floats
    family: Ints
    target_density: float

    def __len__(self) -> int:
        return int(self.requests.size)


def sample_requests(count: int, *, known: Bools, share: float, rng: np.random.Generator) -> Bools:
    """Which requests to run first, to learn their output: a share of those not ``known``.

    At least one, if any is unknown. Source: BlendServe §3.2; video requests say their length.

    Raises:
        ConfigError: a share outside 0 to 1.
    """
    if not 0.0 <= share <= 1.0:
        raise ConfigError(f"share is {share}: give 0 to 1")
    unknown = np.flatnonzero(~known)
    chosen = np.zeros(count, dtype=np.bool_)
    wanted = min(unknown.size, max(1, round(share * unknown.size)))
    chosen[rng.choice(unknown, size=wanted, replace=False)] = True
    return chosen


def estimate_outputs(tree: DensityTree, *, outputs: Floats, seen: Bools) -> Floats:
    """Expected output tokens ``(n,)``: as seen, or the mean of the nearest subtree that has any.

    ``outputs`` ``(n,)`` holds what was seen and is not read elsewhere. Without anything seen in a
    subtree, the one above it speaks: that is its siblings' mean.

    Raises:
        ConfigError: nothing was seen at all.

    Source: BlendServe §3.2.
    """
    if tree.leaf.size and not seen.any():
        raise ConfigError("no output length is known: sample at least one request")
    counts, sums = np.zeros(tree.nodes), np.zeros(tree.nodes)
    counts[tree.leaf] = seen
    sums[tree.leaf] = np.where(seen, outputs, 0.0)
    counts, sums = tree.subtree_sums(counts), tree.subtree_sums(sums)
    mean = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
    for level in tree.downwards():
        mean[level] = np.where(counts[level] > 0, mean[level], mean[tree.parent[level]])
    return mean[tree.leaf]


def tree_costs(tree: DensityTree, outputs: Floats, model: DensityModel) -> TreeCosts:
    """Work of every subtree, for outputs as expected. Source: BlendServe §3.2, rho(R)."""
    compute = model.span_compute_s(
        tree.start_tokens.astype(np.float64), tree.end_tokens.astype(np.float64)
    )
    memory = np.zeros(tree.nodes)
    prompts = tree.end_tokens[tree.leaf].astype(np.float64)
    compute[tree.leaf] += model.output_compute_s(outputs)
    memory[tree.leaf] = model.memory_s(prompts, outputs)
    compute_s, memory_s = tree.subtree_sums(compute), tree.subtree_sums(memory)
    density = np.full(tree.nodes, np.inf)
    np.divide(compute_s, memory_s, out=density, where=memory_s > 0)
    part = compute / np.maximum(tree.leaves(), 1)
    for level in tree.downwards():
        part[level] += part[tree.parent[level]]
    return TreeCosts(
        compute_s=compute_s,
        memory_s=memory_s,
        density=density,
        request_compute_s=part[tree.leaf],
        request_memory_s=memory[tree.leaf],
    )


def split_nodes(tree: DensityTree, threshold_tokens: float) -> Ints:
    """The unit of each node, as the node at its top: what is kept together when units are sorted.

    A node whose prefix would have to be computed again for its children, at a cost above the
    threshold, is a unit; else its children are asked, each with an equal part of the threshold.

    Source: BlendServe Algorithm 2. As printed a request that is reached loses its place, for a
    leaf never exceeds the threshold: here it is a unit of its own.
    """
    children = tree.children()
    waste = tree.end_tokens * children
    allowed = np.full(tree.nodes, threshold_tokens, dtype=np.float64)
    unit = np.arange(tree.nodes)
    opened = (waste <= allowed) & (children > 0)
    for level in tree.downwards():
        parent = tree.parent[level]
        allowed[level] = allowed[parent] / np.maximum(children[parent], 1)
        above = opened[parent]
        unit[level] = np.where(above, unit[level], unit[parent])
        opened[level] = above & (waste[level] <= allowed[level]) & (children[level] > 0)
    return unit


def blend(
    tree: DensityTree,
    prompts: Prompts,
    *,
    outputs: Floats,
    model: DensityModel,
    split_share: float = DEFAULT_SPLIT_SHARE,
) -> BlendOrder:
    """The order to scan from both ends, for outputs as expected.

    ``split_share``: prompt tokens that node splitting may recompute, over all prompt tokens.

    Source: BlendServe §3.3, Algorithms 1 and 2. Units smaller than 64 requests are merged with
    their neighbours in the order (§4 merges subtrees without saying how).
    """
    costs = tree_costs(tree, outputs, model)
    unit = split_nodes(tree, split_share * float(prompts.tokens.sum()))[tree.leaf]
    rank = np.empty(len(prompts), dtype=np.int64)
    depth_first = tree.depth_first(-costs.density)
    rank[depth_first] = np.arange(rank.size)
    order = np.lexsort((rank, unit, -costs.density[unit]))
    return BlendOrder(
        requests=order,
        density=_merged_density(unit[order], costs),
        compute_s=costs.request_compute_s[order],
        memory_s=costs.request_memory_s[order],
        family=tree.families()[order],
        target_density=costs.root_density,
    )


def _merged_density(unit: Ints, costs: TreeCosts) -> Floats:
    """Density of each place's unit, small neighbours merged."""
    if not unit.size:
        return np.zeros(0)
    heads = np.flatnonzero(np.r_[True, unit[1:] != unit[:-1]])
    sizes = np.diff(np.r_[heads, unit.size])
    bucket = heads // _LEAST_UNIT
    firsts = np.flatnonzero(np.r_[True, bucket[1:] != bucket[:-1]])
    nodes = unit[heads]
    compute_s = np.add.reduceat(costs.compute_s[nodes], firsts)
    memory_s = np.add.reduceat(costs.memory_s[nodes], firsts)
    density = np.array([blended_density(c, m) for c, m in zip(compute_s, memory_s, strict=True)])
    return np.repeat(density, np.add.reduceat(sizes, firsts))
