"""Whether the engine's loop may sleep although requests are there, and when it must look again.

While nothing can be planned, vLLM would run empty steps a thousand times a second.
"""

from collections.abc import Callable

from weir_agent.vllm_bridge.waker import IdleWaker

LONGEST_S = 1.0
"""The plan is asked again at least this often, whatever it said."""

LONGEST_WITH_ONLINE_S = 0.02
"""The same while an online request waits and nothing is in flight: a safety net."""


class Parking:
    """Parked from ``park`` until something happens or its time is over.

    ``wake`` (set once the engine's queue is known) makes the sleeping loop look again; without it
    the caller polls.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until_s: float | None = None
        self._waker: IdleWaker | None = None

    @property
    def parked(self) -> bool:
        """True while no step is needed."""
        until_s = self._until_s
        if until_s is None:
            return False
        if self._clock() < until_s:
            return True
        self._until_s = None
        return False

    @property
    def has_waker(self) -> bool:
        """True once the engine can be woken."""
        return self._waker is not None

    def use(self, wake: Callable[[], None]) -> None:
        """Wake the engine by calling ``wake``, from another thread."""
        self._waker = IdleWaker(wake)

    def park(self, now_s: float, *, idle_s: float | None, waiting: bool, online: bool) -> None:
        """Nothing can be planned; ``idle_s`` seconds from now at the latest, look again.

        ``waiting`` when requests are there at all, ``online`` when an online one needs a step.
        """
        longest_s = LONGEST_WITH_ONLINE_S if online else LONGEST_S
        until_s = now_s + (longest_s if idle_s is None else min(idle_s, longest_s))
        self._until_s = until_s
        if waiting and self._waker is not None:
            self._waker.at(until_s)

    def unpark(self) -> None:
        """Something happened: plan again."""
        self._until_s = None

    def close(self) -> None:
        """End the waker's thread."""
        if self._waker is not None:
            self._waker.close()
            self._waker = None
