"""The past of one pod in memory: buckets of online KV demand, bounded, ready to forecast from."""

from __future__ import annotations

import numpy as np

from weir_controlplane.forecast.demand import (
    BUCKET_FIELDS,
    BUCKET_S,
    COARSE_BUCKET_S,
    Bucket,
    Demand,
)
from weir_controlplane.forecast.methods import DAY_S, History

RECENT_S = 2 * 3600  # an hour to forecast from before each moment of the hour that is scored
DAYS_S = 7 * DAY_S


class Series:
    """The newest buckets of one length, as columns in a buffer that moves when it is full."""

    def __init__(self, length_s: int, span_s: int) -> None:
        self.length_s = length_s
        self._kept = span_s // length_s
        self._table = np.zeros((2 * self._kept, len(BUCKET_FIELDS)))
        self._first = self._end = 0

    def add(self, bucket: Bucket, *, replace: bool = False) -> None:
        """Adds to the bucket of that time (or replaces it); one older than all kept is dropped."""
        row = [float(getattr(bucket, name)) for name in BUCKET_FIELDS]
        at = self._place(row[0])
        if at < self._end and self._table[at, 0] == bucket.start_s:
            if not replace:
                row[1:4] = self._table[at, 1:4] + row[1:4]
                row[4] = max(self._table[at, 4], row[4])
            self._table[at] = row
            return
        if at == self._first and self._end - self._first >= self._kept:
            return
        if self._end == len(self._table):
            kept = self._table[self._first : self._end].copy()
            at -= self._first
            self._first, self._end = 0, len(kept)
            self._table[: len(kept)] = kept
        self._table[at + 1 : self._end + 1] = self._table[at : self._end].copy()
        self._table[at] = row
        self._end += 1
        self._first = max(self._first, self._end - self._kept)

    def _place(self, start_s: float) -> int:
        newest = self._end - 1
        if newest >= self._first and self._table[newest, 0] == start_s:
            return newest  # nearly always: samples come in the order of time
        starts = self._table[self._first : self._end, 0]
        return self._first + int(np.searchsorted(starts, start_s))

    def samples_since(self, start_s: int) -> float:
        """Samples in the buckets that start at ``start_s`` or later."""
        return float(self._table[self._place(start_s) : self._end, 1].sum())

    def forget_after(self, at_s: float) -> None:
        """Lets go of the buckets that start later than ``at_s``."""
        starts = self._table[self._first : self._end, 0]
        self._end = self._first + int(np.searchsorted(starts, at_s, side="right"))

    def demand(self) -> Demand:
        """The series as it is now; valid until the next `add`."""
        table = self._table[self._first : self._end]
        return Demand(**{name: table[:, at] for at, name in enumerate(BUCKET_FIELDS)})


class PodHistory:
    """The past of one pod."""

    def __init__(self) -> None:
        self.recent = Series(BUCKET_S, RECENT_S)
        self.days = Series(COARSE_BUCKET_S, DAYS_S)

    def series(self, length_s: int) -> Series:
        """The series of one bucket length."""
        return self.recent if length_s == BUCKET_S else self.days

    def forget_after(self, at_s: float) -> None:
        """Lets go of what is later than ``at_s``: a clock that was set back has seen it."""
        self.recent.forget_after(at_s)
        self.days.forget_after(at_s)

    def history(self) -> History:
        """What forecasts are made from; valid until the next sample."""
        return History(recent=self.recent.demand(), days=self.days.demand())
