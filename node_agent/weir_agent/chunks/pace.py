"""How fast offline lines finish: what a minute of this pod's spare capacity is. Pure."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0


class Pace:
    """Finished lines a second over the last minute, or over the time since the first one."""

    def __init__(self, *, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._finished_s: deque[float] = deque(maxlen=65_536)

    def finished(self, now_s: float) -> None:
        """One more line was finished."""
        self._finished_s.append(now_s)

    def per_s(self, now_s: float) -> float:
        """Lines a second; 0 of nothing."""
        finished_s = self._finished_s
        while finished_s and finished_s[0] < now_s - self._window_s:
            finished_s.popleft()
        if not finished_s:
            return 0.0
        return len(finished_s) / max(1.0, now_s - finished_s[0])
