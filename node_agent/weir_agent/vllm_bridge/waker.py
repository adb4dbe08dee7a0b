"""Wakes the engine's loop, which sleeps while nothing can be planned.

One thread for the life of the engine; it knows no plan and no request.
"""

import threading
import time
from collections.abc import Callable


class IdleWaker:
    """Calls ``wake`` once at the time last asked for, from a thread of its own.

    Times are on ``time.monotonic``. The thread starts with the first ``at``; a call of ``wake``
    that is no longer needed must do no harm.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._due_s: float | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def at(self, due_s: float) -> None:
        """Wake the engine at ``due_s``; replaces an earlier wish."""
        with self._changed:
            if self._closed:
                return
            self._due_s = due_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="weir-waker", daemon=True)
                self._thread.start()
            else:
                self._changed.notify()

    def cancel(self) -> None:
        """Nothing is to be woken."""
        self._due_s = None  # the thread looks again when its time comes

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(timeout=1.0)

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                due_s = self._due_s
                if due_s is None:
                    self._changed.wait()
                    continue
                wait_s = due_s - time.monotonic()
                if wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                self._due_s = None
                self._wake()
