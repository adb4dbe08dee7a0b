"""The parent process: starts the agent, and starts it again when it died. Holds the socket.

The parent imports the heavy modules once and forks, so that a restart takes seconds. It computes
next to nothing, so that nothing but a signal can end it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from types import FrameType

import structlog

log = structlog.get_logger(__name__)

PR_SET_PDEATHSIG = 1
MOST_PAUSE_S = 30.0
STEADY_S = 60.0
LOOK_S = 0.1
MOST_FILES = 65_535
FORWARDED = (signal.SIGTERM, signal.SIGINT)
# A fault inside the process itself; other signals come from outside and suspect nobody.
FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT})


class Exit(IntEnum):
    """How an agent process ends."""

    OK = 0
    FAILED = 1
    USAGE = 2
    ENGINE_DIED = 75
    UNRECORDED_DEATH = 76


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a child ended: its exit status, or the signal that ended it.

    ``short``: its container was short of memory just before.
    """

    status: int
    signal: int | None
    short: bool

    @property
    def by_a_fault(self) -> bool:
        """True of a fault inside the process; a kill for lack of memory is one."""
        return self.signal in FAULTS or (self.signal == signal.SIGKILL and self.short)


class Supervisor:
    """Runs ``work`` in forked children until one ends in order.

    ``work`` is given a function to say that it is ready, and returns an exit status. A child that
    ends before any was ever ready is not started again: its fault would only repeat itself.
    ``after_fault`` runs here when a child was ended by a fault of its own or could not record its
    engine's death, and again before each next start until the disk took what it wrote. A child that
    is killed while ``short_of_memory``, which is asked all the time, was ended by the kernel for a
    fault of its own too; ``ended_short``: so was an earlier parent with its child. ``restarts``
    counts the children after the first; each child sees the count of its own start.
    """

    def __init__(
        self,
        work: Callable[[Callable[[], None]], int],
        *,
        after_fault: Callable[[], None],
        first_pause_s: float,
        stop_within_s: float,
        short_of_memory: Callable[[], bool] = lambda: False,
        ended_short: bool = False,
    ) -> None:
        self._work = work
        self._after_fault = after_fault
        self._first_pause_s = first_pause_s
        self._stop_within_s = stop_within_s
        self._short_of_memory = short_of_memory
        self._ended_short = ended_short
        self._ready = mmap.mmap(-1, 2)  # shared with the children: one ever was, the last one was
        self._child: int | None = None
        self._stopping = False
        self.restarts = 0
        self.unrecorded = False

    def run(self) -> int:
        """The exit status of the whole."""
        for number in FORWARDED:
            signal.signal(number, self._forward)
        signal.signal(signal.SIGALRM, self._kill)
        gc.collect()
        gc.freeze()  # children share these pages
        failures, self.unrecorded = 0, self._ended_short
        while True:
            self.unrecorded = self.unrecorded and not self._recorded()
            self._ready[1] = 0
            started_s = time.monotonic()
            ended = self._run_child()
            if self._ready[1]:  # it recorded what its journal had, or could not, and began anew
                self.unrecorded = False
            if self._is_stopping():
                return Exit.OK if ended.signal is None else ended.status
            # Settings that worked once are not wrong now: what they name may be away for a while.
            if ended.status == Exit.OK or not self._ready[0]:
                return ended.status
            log.error("agent.ended", status=ended.status, signal=ended.signal)
            if ended.by_a_fault or ended.status == Exit.UNRECORDED_DEATH:
                self.unrecorded = not self._recorded()
            failures = 0 if time.monotonic() - started_s > STEADY_S else failures + 1
            self._sleep(min(MOST_PAUSE_S, self._first_pause_s * 2.0 ** min(failures, 30)))
            if self._is_stopping():
                return Exit.OK
            self.restarts += 1

    def _recorded(self) -> bool:
        try:
            self._after_fault()
        except OSError as error:
            log.error("agent.fault_not_recorded", reason=str(error))  # noqa: TRY400 - no stack to read
            return False
        return True

    def _is_stopping(self) -> bool:
        return self._stopping

    def _sleep(self, pause_s: float) -> None:
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s and not self._stopping:
            time.sleep(0.05)

    def _mark_ready(self) -> None:
        self._ready[0] = self._ready[1] = 1

    def _run_child(self) -> Ended:
        # A signal that comes before both processes know who they are would be nobody's.
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        parent, child = os.getpid(), os.fork()
        if child == 0:
            _become_child(parent, lambda: self._work(self._mark_ready))
        self._child = child
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        if self._stopping:  # the signal came before there was a child to forward it to
            self._forward(signal.SIGTERM, None)
        status, short = self._end_of(child)
        self._child = None
        signal.alarm(0)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return Ended(status=128 + number, signal=number, short=short)
        return Ended(status=os.WEXITSTATUS(status), signal=None, short=short)

    def _end_of(self, child: int) -> tuple[int, bool]:
        """The wait status of a child, and whether memory was short before.

        What its predecessors left behind is collected on the way: in a container this is process
        1, to which the kernel gives every process without a parent.
        """
        short = self._short_of_memory()
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                return status, short
            if pid == 0:
                short = self._short_of_memory()
                time.sleep(LOOK_S)

    def _forward(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        if self._child is not None:
            self._signal(self._child, signal.SIGTERM)
            signal.alarm(max(1, round(self._stop_within_s)))

    def _kill(self, _number: int, _frame: FrameType | None) -> None:
        if self._child is not None:
            self._signal(self._child, signal.SIGKILL)

    @staticmethod
    def _signal(child: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(child, number)


def _become_child(parent: int, work: Callable[[], int]) -> None:
    """Runs ``work`` and ends the process; never returns."""
    status: int = Exit.FAILED
    try:
        for number in (*FORWARDED, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        die_with(parent)
        os.setsid()  # Ctrl-C reaches the parent alone, and the parent passes it on in order
        # vLLM's engine process is forked from this one, and must not outlive it either.
        os.register_at_fork(before=_forks.note, after_in_child=_forks.follow)
        status = work()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else Exit.FAILED
    except BaseException:
        log.exception("agent.fault")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def end_within(seconds: float, status: int) -> None:
    """Ends this process with ``status`` after so long, should what it still closes hang."""
    timer = threading.Timer(seconds, os._exit, (status,))
    timer.daemon = True  # it keeps no process that ends by itself
    timer.start()


def die_with(parent: int) -> None:
    """Has the kernel end this process when the thread that started it ends (Linux).

    ``parent`` is the process of that thread; when it has ended already, this one ends here.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the kernel tells only of what comes after
        os._exit(Exit.FAILED)


class _Forks:
    """Has each process that is forked from here on die with the one that forked it."""

    def __init__(self) -> None:
        self._parent = 0

    def note(self) -> None:
        """This process is about to fork."""
        self._parent = os.getpid()

    def follow(self) -> None:
        """This one was forked."""
        die_with(self._parent)


_forks = _Forks()


def end_at_once_on_signals() -> None:
    """SIGTERM and SIGINT end this process where it stands: there is nothing to end in order yet.

    Process 1 of a container gets no signal that it has no handler for.
    """
    for number in FORWARDED:
        signal.signal(number, lambda number, _frame: os._exit(128 + number))


def allow_many_files() -> None:
    """Raises this process's soft limit on open files: a connection is one, and so is a chunk.

    Container runtimes give 1,024. vLLM's own server raises it likewise.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket that children may inherit.

    Raises:
        OSError: the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.set_inheritable(True)
    except OSError:
        bound.close()
        raise
    return bound
