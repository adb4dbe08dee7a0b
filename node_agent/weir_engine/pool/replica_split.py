"""The density order cut into parts for replicas: contiguous slices from both ends.

Each part has about the whole's compute density. Pure functions over places of the order, which may
stand for requests or for chunks of them; the control plane's dispatch can use them as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weir_engine.errors import ConfigError
from weir_engine.pool.density_tree import Floats, Ints


@dataclass(frozen=True, kw_only=True, slots=True)
class EndSlices:
    """Places of one replica: ``left`` is taken from its start, ``right`` from its end inwards."""

    left: range
    right: range

    def __len__(self) -> int:
        return len(self.left) + len(self.right)

    def places(self) -> Ints:
        """All its places, ascending."""
        return np.concatenate(
            [np.arange(part.start, part.stop, dtype=np.int64) for part in (self.left, self.right)]
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedWork:
    """Work at each place of the order, from the most compute-bound place to the least.

    ``compute_s`` and ``memory_s`` ``(n,)`` are seconds, 0 or more. ``family`` ``(n,)``: a cut
    between places of one family computes their shared prefix twice.

    Raises:
        ConfigError: arrays of different lengths.
    """

    compute_s: Floats
    memory_s: Floats
    family: Ints

    def __post_init__(self) -> None:
        if not self.compute_s.size == self.memory_s.size == self.family.size:
            raise ConfigError(
                f"placed work has {self.compute_s.size} compute, {self.memory_s.size} memory and "
                f"{self.family.size} family entries: give one of each a place"
            )

    def __len__(self) -> int:
        return int(self.compute_s.size)

    def sums(self, slices: EndSlices) -> tuple[float, float]:
        """Seconds of compute- and of memory-bound work in the slices."""
        places = slices.places()
        return float(self.compute_s[places].sum()), float(self.memory_s[places].sum())


def split_across(work: PlacedWork, weights: Sequence[float]) -> tuple[EndSlices, ...]:
    """One part a replica, in proportion to ``weights``: its compute- and memory-bound seconds.

    The first replica gets the outermost slices. Every place is in exactly one part.

    Raises:
        ConfigError: no weights, or one that is not above 0.

    Source: BlendServe §6.1.
    """
    if not weights or min(weights) <= 0:
        raise ConfigError(f"weights are {list(weights)}: give one above 0 for each replica")
    middle = len(work)
    rest = EndSlices(left=range(middle), right=range(middle, middle))
    parts = []
    for at, weight in enumerate(weights[:-1]):
        part, rest = _take_outer(work, rest, weight / sum(weights[at:]))
        parts.append(part)
    return (*parts, rest)


def steal(
    work: PlacedWork, remaining: EndSlices, *, share: float = 0.5
) -> tuple[EndSlices, EndSlices]:
    """What a replica keeps of its remaining places, and what an idle one takes: the inner part.

    Both have about the density of what remained. The owner works from the outer ends inwards, so
    the inner part is what it would reach last. Cuts move to family bounds where those are near.

    Raises:
        ConfigError: a share outside 0 to 1.
    """
    if not 0.0 <= share <= 1.0:
        raise ConfigError(f"share is {share}: give 0 to 1")
    return _take_outer(work, remaining, 1.0 - share)


_NEAR = 0.1  # a cut may move to a family's bound within this part of its slice's work


def _take_outer(work: PlacedWork, given: EndSlices, share: float) -> tuple[EndSlices, EndSlices]:
    """The outer part of both slices with ``share`` of their work, and the inner rest.

    For each left cut the right one follows from the memory-bound work, and the compute-bound work
    grows with the left cut: it is found by bisection.
    """
    compute, memory = _running_sums(work, given)
    size, bound = len(given), len(given.left)
    one_piece = bound == size or bound == 0 or given.left.stop == given.right.start
    wanted_compute, wanted_memory = share * compute[-1], share * memory[-1]

    def right_cut(left: int) -> int:
        if wanted_memory == 0:  # none of it is memory-bound: the left cut alone decides
            return size
        least = left if one_piece else bound
        below = memory[-1] - (wanted_memory - memory[left])
        cut = int(np.clip(np.searchsorted(memory, below), max(least, left), size))
        # One place more, if that comes nearer: the longest outputs are a large part of a slice.
        more = cut > max(least, left) and 2 * below < memory[cut] + memory[cut - 1]
        return cut - 1 if more else cut

    low, high = 0, size if one_piece else bound
    while low < high:
        middle = (low + high) // 2
        right = right_cut(middle)
        if compute[middle] + compute[-1] - compute[right] < wanted_compute:
            low = middle + 1
        else:
            high = middle
    places = given.places()
    left = _to_family(work, places, compute, low, bounds=(0, low), slice_s=compute[low])
    right = right_cut(left)
    bounds = (max(left, right), size)
    slice_s = memory[-1] - memory[right]
    right = _to_family(work, places, memory, right, bounds=bounds, slice_s=slice_s)
    if one_piece:
        start = int(places[0]) if size else 0
        whole = range(start, start + size)
        outer = EndSlices(left=whole[:left], right=whole[right:])
        inner = whole[left:right]
        return outer, EndSlices(left=inner, right=range(inner.stop, inner.stop))
    cut = right - bound
    return (
        EndSlices(left=given.left[:left], right=given.right[cut:]),
        EndSlices(left=given.left[left:], right=given.right[:cut]),
    )


def _running_sums(work: PlacedWork, given: EndSlices) -> tuple[Floats, Floats]:
    places = given.places()
    return (
        np.r_[0.0, np.cumsum(work.compute_s[places])],
        np.r_[0.0, np.cumsum(work.memory_s[places])],
    )


def _to_family(
    work: PlacedWork,
    places: Ints,
    sums: Floats,
    cut: int,
    *,
    bounds: tuple[int, int],
    slice_s: float,
) -> int:
    """The family bound nearest to a cut within ``bounds``, if little of its slice lies between."""
    family = work.family[places]
    low, high = bounds
    starts = np.flatnonzero(np.r_[True, family[1:] != family[:-1], True])
    starts = starts[(starts >= low) & (starts <= high)]  # never empty: one end of all is within
    nearest = int(starts[np.argmin(np.abs(starts - cut))])
    return nearest if abs(sums[nearest] - sums[cut]) <= _NEAR * slice_s else cut
