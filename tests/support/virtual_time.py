"""An event loop whose clock jumps to the next timer: seconds of waiting cost nothing."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Selector(selectors.SelectSelector):
    """Never waits: what would be waited for becomes the time that has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits, and no timer is set: nothing can ever happen")
        found = super().select(0)
        if not found and timeout > 0:
            self.now_s += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time, which starts at 1,000 s."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual.now_s


def run_virtual(
    main: Callable[[Callable[[], float]], Coroutine[Any, Any, Result]],
) -> Result:
    """Runs ``main(clock)`` on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main(runner.get_loop().time))
