"""Places for what runs at once, shared by the tenants of one replica."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from weir_controlplane.errors import OverloadedError

ALPHA = 2


class Room:
    """A bounded number of places, of which each tenant leaves some to the others.

    A tenant takes a place only while it has fewer than twice as many as are free: alone it gets two
    thirds of them, and however long it keeps them, whoever comes next finds one.

    Source: dynamic thresholds for shared memory of switches (Choudhury and Hahne, 1998), alpha 2;
    the last place is only for who has none, which matters where there are few.
    """

    def __init__(self, places: int, *, of: str, retry_after_s: int) -> None:
        """``of``: what takes the places, in words; ``retry_after_s``: for who gets none."""
        self._places = places
        self._of = of
        self._retry_after_s = retry_after_s
        self._taken: Counter[str] = Counter()

    @property
    def free(self) -> int:
        """Places that nobody has."""
        return self._places - self._taken.total()

    @contextlib.contextmanager
    def place(self, tenant_id: str) -> Iterator[None]:
        """A place until the block ends.

        Raises:
            OverloadedError: the tenant gets no more for now.
        """
        taken, free = self._taken[tenant_id], self.free
        if taken >= ALPHA * free or (taken and free == 1):
            raise OverloadedError(f"too many {self._of} at once", retry_after_s=self._retry_after_s)
        self._taken[tenant_id] += 1
        try:
            yield
        finally:
            self._taken[tenant_id] -= 1
            self._taken += Counter()  # without those that have none
