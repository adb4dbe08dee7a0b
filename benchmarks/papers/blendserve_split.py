"""BlendServe across replicas: what each gets by a split from both ends, one by one, and in a row.

Arithmetic on the order alone: no scheduler runs here. Source: BlendServe §6.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.blendserve_workload import Workload
from weir_engine.pool.blend_order import BlendOrder, blend
from weir_engine.pool.density import DensityModel
from weir_engine.pool.density_tree import Prompts, build_tree
from weir_engine.pool.replica_split import PlacedWork, split_across
from weir_engine.sim.profile_cost import Interference

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SplitOutcome:
    """A way to split a batch across ``replicas``.

    ``density_off``: the worst replica's density against the whole's, as a part of it.
    ``slowest``: the time of the slowest replica over that of an equal part of the batch, both
    perfectly overlapped. ``computed_again``: prompt tokens that more than one replica computes,
    over all prompt tokens.
    """

    way: str
    replicas: int
    density_off: float
    slowest: float
    computed_again: float


def splits(
    workload: Workload, model: DensityModel, replicas: int, interference: Interference
) -> tuple[SplitOutcome, ...]:
    """From both ends of the density order, in a row of it, and dealt out one by one."""
    prompts = workload.prompts()
    outputs = workload.output_tokens.astype(np.float64)
    tree = build_tree(prompts)
    order = blend(tree, prompts, outputs=outputs, model=model)
    work = PlacedWork(compute_s=order.compute_s, memory_s=order.memory_s, family=order.family)
    places = np.arange(len(order))
    ways = {
        "both ends": [part.places() for part in split_across(work, [1.0] * replicas)],
        "in a row": np.array_split(places, replicas),
        "one by one": [places[first::replicas] for first in range(replicas)],
    }
    whole = _distinct_tokens(prompts)
    return tuple(
        _outcome(way, parts, order, prompts, whole, interference) for way, parts in ways.items()
    )


def _outcome(
    way: str,
    parts: list[Ints],
    order: BlendOrder,
    prompts: Prompts,
    whole_tokens: int,
    interference: Interference,
) -> SplitOutcome:
    def seconds(at: Ints) -> float:
        compute_s, memory_s = float(order.compute_s[at].sum()), float(order.memory_s[at].sum())
        return interference.together_s(compute_s, memory_s, compute_s + memory_s)

    density = [order.compute_s[at].sum() / max(order.memory_s[at].sum(), 1e-12) for at in parts]
    again = sum(_distinct_tokens(_of(prompts, order.requests[at])) for at in parts) - whole_tokens
    return SplitOutcome(
        way=way,
        replicas=len(parts),
        density_off=max(abs(float(own) / order.target_density - 1) for own in density),
        slowest=max(seconds(at) for at in parts) * len(parts) / seconds(np.arange(len(order))),
        computed_again=again / float(prompts.tokens.sum()),
    )


def _distinct_tokens(prompts: Prompts) -> int:
    tree = build_tree(prompts)
    return int((tree.end_tokens - tree.start_tokens).sum())


def _of(prompts: Prompts, requests: Ints) -> Prompts:
    """The prompts of some requests alone."""
    starts, blocks = prompts.offsets[requests], np.diff(prompts.offsets)[requests]
    offsets = np.r_[0, np.cumsum(blocks)]
    at = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks) + np.repeat(starts, blocks)
    return Prompts(
        hashes=prompts.hashes[at],
        offsets=offsets,
        tokens=prompts.tokens[requests],
        block_size_tokens=prompts.block_size_tokens,
    )
