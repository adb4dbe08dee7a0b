"""Online KV demand of one pod as a series of buckets, and the sums that merge across replicas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt

BUCKET_S = 10
COARSE_BUCKET_S = 600
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Samples of online KV demand in ``[start_s, start_s + length)``.

    ``start_s`` is in seconds since 1970, a multiple of the bucket's length. Sums, so that buckets
    that two replicas filled for the same pod add up.
    """

    start_s: int
    samples: int
    sum_blocks: float
    sum_sq_blocks: float
    max_blocks: int

    @classmethod
    def of(cls, at_s: float, blocks: int, *, length_s: int = BUCKET_S) -> Self:
        """The bucket of one sample taken at ``at_s``."""
        return cls(
            start_s=int(at_s // length_s) * length_s,
            samples=1,
            sum_blocks=float(blocks),
            sum_sq_blocks=float(blocks) ** 2,
            max_blocks=blocks,
        )

    def plus(self, other: Bucket) -> Bucket:
        """Both together; they must start at the same time.

        Raises:
            ValueError: they do not.
        """
        if other.start_s != self.start_s:
            raise ValueError(f"buckets of {self.start_s} and {other.start_s} cannot be added")
        return Bucket(
            start_s=self.start_s,
            samples=self.samples + other.samples,
            sum_blocks=self.sum_blocks + other.sum_blocks,
            sum_sq_blocks=self.sum_sq_blocks + other.sum_sq_blocks,
            max_blocks=max(self.max_blocks, other.max_blocks),
        )


BUCKET_FIELDS = tuple(field.name for field in fields(Bucket))


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """Buckets by time, as columns ``(buckets,)``; gaps are allowed, times strictly rise."""

    start_s: Floats
    samples: Floats
    sum_blocks: Floats
    sum_sq_blocks: Floats
    max_blocks: Floats

    @classmethod
    def of(cls, buckets: Iterable[Bucket]) -> Self:
        """The series of ``buckets``, in any order; equal start times are added."""
        merged: dict[int, Bucket] = {}
        for bucket in buckets:
            known = merged.get(bucket.start_s)
            merged[bucket.start_s] = bucket if known is None else known.plus(bucket)
        rows = [
            (b.start_s, b.samples, b.sum_blocks, b.sum_sq_blocks, b.max_blocks)
            for _, b in sorted(merged.items())
        ]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), 5)
        return cls(
            start_s=table[:, 0],
            samples=table[:, 1],
            sum_blocks=table[:, 2],
            sum_sq_blocks=table[:, 3],
            max_blocks=table[:, 4],
        )

    def __len__(self) -> int:
        return len(self.start_s)

    def between(self, from_s: float, to_s: float) -> tuple[int, int]:
        """The slice ``[first, last)`` of buckets that start in ``[from_s, to_s)``."""
        first, last = np.searchsorted(self.start_s, [from_s, to_s], side="left")
        return int(first), int(last)
