"""One offline line at a time in front of the engine: where its prompt is rendered.

vLLM applies chat templates and tokenizers in one thread, first come first served, for online
requests too: those must not wait behind a queue of long batch lines.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class RenderTurn:
    """A line's turn at ``one``, from entering it to ``over``, or to leaving it at the latest."""

    def __init__(self, one: asyncio.Lock) -> None:
        self._one = one
        self._held = False

    async def __aenter__(self) -> None:
        await self._one.acquire()
        self._held = True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.over()

    def over(self) -> None:
        """Its prompts are rendered: the next line may be; said again it does nothing."""
        if self._held:
            self._held = False
            self._one.release()
