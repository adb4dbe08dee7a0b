"""Ends the process of a leader that missed its deadline, even when its event loop is stuck."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from weir_operator.backoff import Clock

EXIT_LEADERSHIP_LOST = 70
CHECK_S = 0.25


def end_process() -> None:
    """Ends at once: a handler that hangs must not keep a former leader alive."""
    os._exit(EXIT_LEADERSHIP_LOST)


class Watchdog:
    """A thread that watches the elector's deadline."""

    def __init__(
        self,
        deadline_s: Callable[[], float | None],
        *,
        clock: Clock,
        grace_s: float = 1.0,
        end: Callable[[], None] = end_process,
    ) -> None:
        """``end`` is called ``grace_s`` after a deadline passed; the loop itself acts sooner."""
        self._deadline_s = deadline_s
        self._clock = clock
        self._grace_s = grace_s
        self._end = end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leader-watchdog", daemon=True)

    def start(self) -> None:
        """Starts watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stops watching."""
        self._stop.set()

    def expired(self) -> bool:
        """Whether the deadline and its grace have passed."""
        deadline_s = self._deadline_s()
        return deadline_s is not None and self._clock() > deadline_s + self._grace_s

    def _run(self) -> None:
        while not self._stop.wait(CHECK_S):
            if self.expired():
                self._end()
                return
