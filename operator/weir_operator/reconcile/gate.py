"""How often statuses may be written: so many a second in all, and one object now and then."""

from __future__ import annotations

from weir_operator.backoff import Clock, TokenBucket

FORGET_ABOVE = 10_000


class StatusGate:
    """Says how long a status write has to wait."""

    def __init__(self, *, writes_per_s: float, interval_s: float, clock: Clock) -> None:
        """The bound holds in every second: a tenth of it may come at once, the rest evenly."""
        self._bucket = TokenBucket(
            rate_per_s=0.9 * writes_per_s, burst=0.1 * writes_per_s, clock=clock
        )
        self._interval_s = interval_s
        self._clock = clock
        self._written_s: dict[str, float] = {}

    def wait_s(self, uid: str) -> float:
        """0: write now, and it is counted; else how long to wait."""
        now_s = self._clock()
        last_s = self._written_s.get(uid)
        if last_s is not None and now_s - last_s < self._interval_s:
            return self._interval_s - (now_s - last_s)
        wait_s = self._bucket.wait_s()
        if wait_s > 0:
            return wait_s
        self._forget_old(now_s)
        self._written_s[uid] = now_s
        return 0.0

    def _forget_old(self, now_s: float) -> None:
        if len(self._written_s) > FORGET_ABOVE:
            self._written_s = {
                uid: at_s
                for uid, at_s in self._written_s.items()
                if now_s - at_s < self._interval_s
            }
