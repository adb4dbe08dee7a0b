"""Grammars of batch lines are tried in a thread before vLLM reads them where online is served.

vLLM validates each in the loop of its server. A pattern of some fifty bytes can take half a
minute there, and no online request of the pod would move meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from vllm.exceptions import VLLMValidationError

MOST_S: Final = 0.25
"""What online requests may have to wait for the grammar of one line, in seconds of a processor."""

_PATIENCE: Final = 20  # times as long in all: where processors are busy a thread waits for its turn
_MOST_THREADS: Final = 2  # one that reads, and one that takes too long: nothing can stop it
_MOST_KNOWN: Final = 1_000  # lines of a batch mostly share theirs
_TOO_LONG: Final = (
    "the grammar of the structured output takes more than {:g} s to read: make it simpler, with "
    "smaller bounds of repetitions in its patterns"
)
_NO_TURN: Final = (
    "the grammar of the structured output was not read, because grammars of other lines take too "
    "long: submit the line again"
)


class GrammarCheck:
    """Refuses grammars that take vLLM too long to read.

    ``validate`` is vLLM's own; what it raises is left to vLLM, which says it again. ``most_s``: of
    a processor; ``turn_s``: that a grammar waits at most while others are read.
    """

    def __init__(
        self, validate: Callable[[Any], object], *, most_s: float = MOST_S, turn_s: float = 60.0
    ) -> None:
        self._validate = validate
        self._most_s = most_s
        self._turn_s = turn_s
        self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="weir-grammar-check")
        self._faults: dict[bytes, asyncio.Task[str | None]] = {}

    async def check(self, params: Any) -> None:
        """Returns once the grammar of a request's sampling parameters may be given to vLLM.

        Raises:
            VLLMValidationError: it takes too long; the line ends with status 400.
        """
        grammar = getattr(params, "structured_outputs", None)
        if grammar is None:
            return
        key = hashlib.sha256(repr(grammar).encode(errors="surrogatepass")).digest()
        finding = self._faults.get(key)
        if finding is None:
            while len(self._faults) >= _MOST_KNOWN:
                del self._faults[next(iter(self._faults))]
            finding = self._faults[key] = asyncio.create_task(self._fault(params.clone(), key))
        # Other lines wait for the same answer: that this one is cancelled does not end it.
        fault = await asyncio.shield(finding)
        if fault is not None:
            raise VLLMValidationError(fault)

    async def _fault(self, params: Any, key: bytes) -> str | None:
        """Why the grammar is refused; None where it is read in time."""
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def took_s() -> float:
            loop.call_soon_threadsafe(begun.set)
            began_s = time.thread_time()
            # vLLM raises it again, and words it; the panic of a library in Rust is no Exception.
            with contextlib.suppress(BaseException):
                self._validate(params)
            return time.thread_time() - began_s

        reading = self._threads.submit(took_s)
        try:
            await asyncio.wait_for(begun.wait(), self._turn_s)
        except TimeoutError:
            reading.cancel()
            _ = self._faults.pop(key, None)  # of this one nothing is known
            return _NO_TURN
        answer = asyncio.wrap_future(reading)
        await asyncio.wait({answer}, timeout=_PATIENCE * self._most_s)
        if answer.done() and answer.result() <= self._most_s:
            return None
        answer.add_done_callback(partial(self._read_after_all, key))
        return _TOO_LONG.format(self._most_s)

    def _read_after_all(self, key: bytes, answer: asyncio.Future[float]) -> None:
        """What was given up while the whole process stood still may be asked about again."""
        if not answer.cancelled() and answer.result() <= self._most_s:
            _ = self._faults.pop(key, None)
