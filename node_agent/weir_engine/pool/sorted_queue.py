"""A sorted set of keys: first ones at once, add and remove by bisection.

Stands for the self-balancing tree of HyGen Algorithm 3 (T_f). Knows nothing of requests.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

from weir_engine.errors import InvariantError

_BUCKET = 512

K = TypeVar("K", bound=tuple[object, ...])


class SortedQueue(Generic[K]):
    """Distinct keys, smallest first, in sorted buckets of at most 1,024."""

    __slots__ = ("_buckets", "_lasts", "_size")

    def __init__(self) -> None:
        self._buckets: list[list[K]] = []
        self._lasts: list[K] = []  # the largest key of each bucket
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for bucket in self._buckets:
            yield from bucket

    def add(self, key: K) -> None:
        """Insert a key that is not in the set."""
        self._size += 1
        if not self._buckets:
            self._buckets.append([key])
            self._lasts.append(key)
            return
        at = min(bisect_left(self._lasts, key), len(self._buckets) - 1)
        bucket = self._buckets[at]
        insort(bucket, key)
        if len(bucket) > 2 * _BUCKET:
            self._buckets.insert(at + 1, bucket[_BUCKET:])
            del bucket[_BUCKET:]
            self._lasts.insert(at + 1, self._buckets[at + 1][-1])
        self._lasts[at] = bucket[-1]

    def remove(self, key: K) -> None:
        """Take a key out.

        Raises:
            InvariantError: it is not in the set.
        """
        at = bisect_left(self._lasts, key)
        bucket = self._buckets[at] if at < len(self._buckets) else []
        place = bisect_left(bucket, key)
        if place == len(bucket) or bucket[place] != key:
            raise InvariantError(f"key {key!r} is not among the {self._size} keys of the queue")
        del bucket[place]
        self._size -= 1
        if bucket:
            self._lasts[at] = bucket[-1]
        else:
            del self._buckets[at], self._lasts[at]
