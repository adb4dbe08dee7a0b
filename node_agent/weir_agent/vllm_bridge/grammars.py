"""Grammars of batch lines are compiled in threads of their own, and not for ever.

A line of some kilobytes can keep a compiler busy for minutes. vLLM has few threads for it, and
nothing stops what has begun: online requests must not wait behind it, nor other lines for long.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, Final

from weir_agent.vllm_bridge.messages import read_tag
from weir_engine.errors import ConfigError
from weir_engine.ids import RequestClass

MOST_THREADS: Final = 2
"""One that compiles, and one that took too long: each may take gigabytes until it ends."""


@dataclass(kw_only=True, slots=True, eq=False)
class _Job:
    """A grammar to compile; ``began_s`` None: it waits."""

    request: Any
    compile: Callable[[Any], Any]
    came_s: float
    future: Future[Any] = field(default_factory=Future)
    began_s: float | None = None
    given_up: bool = False


class GrammarCompiler:
    """Stands where vLLM's ``StructuredOutputManager`` has its executor.

    Requests that are not offline go on to that executor.
    """

    def __init__(
        self, online: Executor, *, most_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``most_s``: how long a compilation may take, and wait while too many take longer."""
        self.online = online
        self._most_s = most_s
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._running: dict[threading.Thread, _Job] = {}
        self._taker: threading.Thread | None = None  # the one thread that begins what waits
        self._closed = False

    def submit(self, compile_grammar: Callable[[Any], Any], request: Any) -> Future[Any]:
        """What the call will return; called by vLLM, from a thread of its own."""
        if not _is_offline(request):
            return self.online.submit(compile_grammar, request)
        job = _Job(request=request, compile=compile_grammar, came_s=self._clock())
        with self._changed:
            self._waiting.append(job)
            if self._taker is None:
                self._start()
            self._changed.notify_all()
        return job.future

    def give_up(self) -> dict[str, str]:
        """Requests that waited too long since the last call, and why: no grammar will come."""
        late_s = self._clock() - self._most_s
        with self._changed:
            late = [
                job
                for job in self._running.values()
                if job.began_s is not None and job.began_s < late_s and not job.given_up
            ]
            reasons = {
                job.request.request_id: f"the grammar of the structured output took more than "
                f"{self._most_s:g} s to compile: make it simpler, with fewer alternatives and "
                "smaller bounds of repetitions"
                for job in late
            }
            for job in late:
                job.given_up = True
            if self._taker is None or not self._is_stuck(self._taker):
                return reasons
            if len(self._running) < MOST_THREADS:
                self._start()
                return reasons
            for job in [job for job in self._waiting if job.came_s < late_s]:
                self._drop(job)
                reasons[job.request.request_id] = (
                    "the grammar of the structured output was not compiled, since those of other "
                    f"lines took the engine more than {self._most_s:g} s: send the line again"
                )
        return reasons

    def forget(self, request_id: str) -> None:
        """The request has ended: its grammar is not compiled, unless that has begun."""
        with self._changed:
            for job in [job for job in self._waiting if job.request.request_id == request_id]:
                self._drop(job)

    def shutdown(self, *, wait: bool = True, cancel_futures: bool = False) -> None:
        """Begins nothing more; what has begun is left to itself, since it may take minutes."""
        with self._changed:
            self._closed = True
            for job in list(self._waiting):
                self._drop(job)
            self._changed.notify_all()
        self.online.shutdown(wait=wait, cancel_futures=cancel_futures)

    def _is_stuck(self, thread: threading.Thread) -> bool:
        job = self._running.get(thread)
        return job is not None and job.given_up

    def _drop(self, job: _Job) -> None:
        self._waiting.remove(job)
        job.future.cancel()

    def _start(self) -> None:
        self._taker = threading.Thread(target=self._work, name="weir-grammars", daemon=True)
        self._taker.start()

    def _work(self) -> None:
        me = threading.current_thread()
        while (job := self._next(me)) is not None:
            try:
                grammar = job.compile(job.request)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the request's
                self._ended(me)
                job.future.set_exception(error)
            else:
                self._ended(me)
                job.future.set_result(grammar)

    def _next(self, me: threading.Thread) -> _Job | None:
        """What to compile next; None: nothing any more, another thread has taken over."""
        with self._changed:
            while not self._waiting and self._taker is me and not self._closed:
                self._changed.wait()
            if self._taker is not me or self._closed:
                return None
            job = self._waiting.popleft()
            job.future.set_running_or_notify_cancel()
            job.began_s = self._clock()
            self._running[me] = job
            return job

    def _ended(self, me: threading.Thread) -> None:
        with self._changed:
            del self._running[me]


def take_over_compiler(
    manager: Any, *, most_s: float, clock: Callable[[], float]
) -> GrammarCompiler | None:
    """The compiler of a vLLM ``StructuredOutputManager``, now ours; None where it has none."""
    executor = getattr(manager, "executor", None)  # none without a tokenizer
    if executor is None:
        return None
    online = executor.online if isinstance(executor, GrammarCompiler) else executor
    manager.executor = GrammarCompiler(online, most_s=most_s, clock=clock)
    return manager.executor  # type: ignore[no-any-return]  # vLLM is not analysed


def _is_offline(request: Any) -> bool:
    params = request.sampling_params
    try:
        tag = read_tag(None if params is None else params.extra_args)
    except ConfigError:
        return False  # it is refused, as an online request
    return tag.request_class is RequestClass.OFFLINE
