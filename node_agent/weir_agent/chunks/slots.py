"""How many lines may run at once, and which chunks an agent keeps that may run none.

Decides; what becomes of the chunks is the work's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from weir_agent.chunks.held import HeldChunk

NO_SLOTS_S = 180.0  # a burst of online requests is over by then
STUCK_S = 600.0  # then what has no result waits in the engine, or may not grow there


class Slots:
    """The slots of the policy that holds; ``now`` how many there are."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._had_some_s = self._had_result_s = clock()
        self.now = 0
        self._idle = False
        self._stuck_until_s = -inf
        self._stuck_slots = 0

    def set(self, slots: int, *, idle: bool = False) -> bool:
        """So many from now on; said again every second. True when that is news.

        ``idle``: lines wait in the engine and it runs none, as where each is longer than the
        offline KV threshold: such slots are none.
        """
        self._idle = idle
        if slots and not idle:
            self._had_some_s = self._clock()
        changed, self.now = slots != self.now, slots
        return changed

    @property
    def were_stuck(self) -> bool:
        """Whether what was here lately was given up: the same would be given here again at once."""
        return self.now <= self._stuck_slots and self._clock() < self._stuck_until_s

    def had_result(self, now_s: float) -> None:
        """A line has ended."""
        self._had_result_s = now_s

    def given_up(self, chunks: Iterable[HeldChunk]) -> list[HeldChunk]:
        """Those that other pods may have slots for.

        After `NO_SLOTS_S` without any here those of which no line runs, after `STUCK_S` without a
        result all: what runs may take its time, since its computed tokens would be lost.
        """
        now_s = self._clock()
        if (self.now and not self._idle) or now_s - self._had_some_s < NO_SLOTS_S:
            return []
        stuck = now_s - max(self._had_some_s, self._had_result_s) >= STUCK_S
        found = [c for c in chunks if c.closing is None and (stuck or not c.running)]
        if stuck and found:
            self._stuck_until_s, self._stuck_slots = now_s + STUCK_S, self.now
        return found
