"""Child processes of tests: started with a free port, stopped by their recorded pid.

Nothing here knows what the process is. Nothing here may end a process by name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path


class ProcessDiedError(RuntimeError):
    """The process ended before it was ready; the message carries the end of its log."""


def free_port() -> int:
    """A loopback TCP port that is free, and that nobody else takes before its server does.

    Linux gives ports from 32,768 on to connections and to whoever asks for any, so none of those:
    a server that starts here, or starts again, would find it taken by chance.
    """
    for port in itertools.islice(_PORTS, PORTS_OF_A_WORKER):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no port of {PORTS_OF_A_WORKER} is free")


def _ports() -> Iterator[int]:
    """The ports of this process, round and round from any one: beside it other workers take some.

    From 30,000 on they are Kubernetes' own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 12_000 + worker % 18 * PORTS_OF_A_WORKER
    begin = random.randrange(PORTS_OF_A_WORKER)  # noqa: S311 - other runs on this machine
    for number in itertools.count(begin):
        yield first + number % PORTS_OF_A_WORKER


PORTS_OF_A_WORKER = 1000
_PORTS = _ports()


def unprivileged_user() -> str | None:
    """The user for servers that refuse root; None when we are not root ourselves."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


def find_binary(name: str, folders: str = "") -> Path:
    """The path of a program: the newest match of the glob ``folders``, else from PATH.

    Raises:
        FileNotFoundError: not installed; `make setup` installs it.
    """
    found = (
        sorted(
            (folder / name for folder in Path("/").glob(folders) if (folder / name).exists()),
            key=lambda path: [int(part) for part in path.parts if part.isdigit()],
        )
        if folders
        else []
    )
    if found:
        return found[-1]
    on_path = shutil.which(name)
    if on_path is None:
        raise FileNotFoundError(f"{name} is not installed: run `make setup`")
    return Path(on_path)


def tail(path: Path, *, lines: int = 40) -> str:
    """The last lines of a log file, empty when there is none."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def wait_ready(
    process: subprocess.Popen[bytes],
    ready: Callable[[], bool],
    log: Path,
    *,
    within_s: float,
) -> None:
    """Returns when ``ready`` says so.

    Raises:
        ProcessDiedError: the process ended, or was not ready in time.
    """
    deadline_s = time.monotonic() + within_s
    while not ready():
        if process.poll() is not None:
            raise ProcessDiedError(f"exit status {process.returncode}\n{tail(log)}")
        if time.monotonic() > deadline_s:
            raise ProcessDiedError(f"not ready within {within_s} s\n{tail(log)}")
        time.sleep(0.02)


def stop(
    process: subprocess.Popen[bytes],
    *,
    how: signal.Signals = signal.SIGTERM,
    within_s: float = 15.0,
) -> None:
    """Ends one process: asks with ``how``, then kills after ``within_s``."""
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


def accepts_connections(port: int) -> bool:
    """Whether something listens on a loopback port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
        return True
    return False
