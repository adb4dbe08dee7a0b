"""Virtual time: moves only when told, and never back."""

from weir_engine.errors import InvariantError


class VirtualClock:
    """Seconds since the start of a simulation."""

    __slots__ = ("_now_s",)

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    @property
    def now_s(self) -> float:
        """The current time."""
        return self._now_s

    def advance_to(self, time_s: float) -> None:
        """Move to ``time_s``.

        Raises:
            InvariantError: that is in the past.
        """
        if time_s < self._now_s:
            raise InvariantError(f"virtual clock is at {self._now_s} s and cannot go to {time_s} s")
        self._now_s = time_s
