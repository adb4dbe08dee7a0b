"""One process of the cluster: started with its log in a file, ended by its recorded pid.

Nothing here knows what the process is, and nothing ends a process by its name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class ComponentError(RuntimeError):
    """A component did not start or did not become ready; the message has the end of its log."""


class Component:
    """A program with its arguments, which can be started again after it was stopped or killed."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        folder: Path,
        ready: Callable[[], bool] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``folder`` gets NAME.log and NAME.pid; ``ready`` says whether it serves now."""
        self.name = name
        self.log = folder / f"{name}.log"
        self._pid_file = folder / f"{name}.pid"
        self._command = [str(part) for part in command]
        self._ready = ready
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process; None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the process; `wait_ready` says when it serves. Nothing happens if it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the starter alone, which ends all in order
            )
        self._pid_file.write_text(f"{self._process.pid}\n")

    def wait_ready(self, *, within_s: float = 180.0) -> None:
        """Returns when the process serves.

        Raises:
            ComponentError: it ended, or does not serve in time; its log says why.
        """
        deadline_s = time.monotonic() + within_s
        while self._ready is not None and not self._ready():
            if self._process is None or self._process.poll() is not None:
                status = None if self._process is None else self._process.returncode
                raise ComponentError(f"{self.name} ended with status {status}\n{self.tail()}")
            if time.monotonic() > deadline_s:
                raise ComponentError(
                    f"{self.name} is not ready after {within_s:.0f} s\n{self.tail()}"
                )
            time.sleep(0.05)

    def pause(self) -> None:
        """Stops the process where it is: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)
        if self._process is not None and self._process.returncode is None:
            # Its threads stop one by one: until the last has, it may answer.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Lets a paused process go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends the process at once."""
        self._signal(signal.SIGKILL)
        self._gone(within_s=10)

    def stop(self, *, within_s: float = 10.0) -> None:
        """Asks the process to end, and ends it when it has not after ``within_s``."""
        self.resume()  # a paused process never sees SIGTERM
        self._signal(signal.SIGTERM)
        if not self._gone(within_s=within_s):
            self.kill()

    def tail(self, *, lines: int = 40) -> str:
        """The last lines of the log; empty when there is none."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _gone(self, *, within_s: float) -> bool:
        if self._process is None:
            return True
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        self._process = None
        self._pid_file.unlink(missing_ok=True)
        return True
