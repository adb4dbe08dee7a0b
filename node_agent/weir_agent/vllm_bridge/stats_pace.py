"""How often vLLM's metrics are told levels and sums: no oftener than anybody reads them.

vLLM makes, sends and records them with every step, in the engine and in the server; where a step
takes milliseconds that is a good part of what scheduling costs. Sums (prefix cache queries and
hits) add up in vLLM until they are taken.
"""

from collections.abc import Callable
from typing import Final

EVERY_S: Final = 0.1


class StatsPace:
    """Ten times a second, and whenever the engine runs empty: no level stays behind.

    ``always`` when something else is written with them, step by step.
    """

    def __init__(self, clock: Callable[[], float], *, always: bool) -> None:
        self._clock = clock
        self._always = always
        self._next_s = float("-inf")

    def due(self, *, running: bool) -> bool:
        """Whether they are to be made now; ``running`` while requests run."""
        now_s = self._clock()
        if running and now_s < self._next_s and not self._always:
            return False
        self._next_s = now_s + EVERY_S
        return True
