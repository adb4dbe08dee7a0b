"""Grammars of batch lines are tried in a thread before vLLM reads them where online is served.

vLLM validates each in the loop of its server. A pattern of some fifty bytes can take minutes there,
and no online request of the pod would move meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from vllm.exceptions import VLLMValidationError

MOST_S: Final = 0.25
"""What online requests may have to wait for the grammar of one line, in seconds of a processor."""

_PATIENCE: Final = 20  # times as long in all: where processors are busy a thread waits for its turn
_MOST_THREADS: Final = 2  # one that reads, and one that takes too long: nothing can stop it
_MOST_KNOWN: Final = 1_000  # lines of a batch mostly share theirs


class GrammarCheck:
    """Refuses grammars that take vLLM too long to read.

    ``validate`` is vLLM's own; what it raises is left to vLLM, which says it again.
    """

    def __init__(self, validate: Callable[[Any], object], *, most_s: float = MOST_S) -> None:
        self._validate = validate
        self._most_s = most_s
        self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="weir-grammar-check")
        self._is_quick: dict[bytes, bool] = {}

    async def check(self, params: Any) -> None:
        """Returns once the grammar of a request's sampling parameters may be given to vLLM.

        Raises:
            VLLMValidationError: it takes too long; the line ends with status 400.
        """
        grammar = getattr(params, "structured_outputs", None)
        if grammar is None:
            return
        key = hashlib.sha256(repr(grammar).encode(errors="surrogatepass")).digest()
        if key not in self._is_quick:
            quick = await self._try(params.clone())
            while len(self._is_quick) >= _MOST_KNOWN:
                self._is_quick.pop(next(iter(self._is_quick)))
            self._is_quick[key] = quick
        if not self._is_quick[key]:
            raise VLLMValidationError(
                f"the grammar of the structured output takes more than {self._most_s:g} s to read: "
                "make it simpler, with smaller bounds of repetitions in its patterns"
            )

    async def _try(self, params: Any) -> bool:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def took_s() -> float:
            loop.call_soon_threadsafe(begun.set)
            began_s = time.thread_time()
            with contextlib.suppress(Exception):  # vLLM raises it again, and words it
                self._validate(params)
            return time.thread_time() - began_s

        reading = loop.run_in_executor(self._threads, took_s)
        try:
            await begun.wait()
            await asyncio.wait({reading}, timeout=_PATIENCE * self._most_s)
        finally:
            if not reading.done():
                reading.cancel()  # one that has not begun never will
        return not reading.cancelled() and reading.result() <= self._most_s
