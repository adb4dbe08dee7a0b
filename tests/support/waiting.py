"""Waiting for what a process does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(
    condition: Callable[[], object], *, within_s: float = 180, every_s: float = 0.1
) -> bool:
    """Whether a condition becomes true before patience ends."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(every_s)
    return False
