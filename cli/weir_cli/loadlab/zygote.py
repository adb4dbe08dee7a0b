"""A process that has a module's heavy imports loaded and forks servers from itself in seconds.

Benchmarks restart an agent for each SLO; most of a start is importing vLLM. Requests come as JSON
lines on stdin, `{"environment", "log"}`; each is answered by the child's pid on stdout.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn


def main() -> None:
    """Runs until stdin closes: ``python -m weir_cli.loadlab.zygote PRELOAD ENTRY``.

    Both arguments read ``module:function``; the first loads, the second is what a child runs.
    """
    preload, entry = sys.argv[1:3]
    _resolve(preload)()
    run = _resolve(entry)
    with contextlib.suppress(ModuleNotFoundError):
        # It must find the title's place in memory before a child replaces the environment: by the
        # title the engine's process is known.
        importlib.import_module("setproctitle").getproctitle()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are nobody's zombies
    print("ready", flush=True)  # noqa: T201 - the answer on a pipe
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(request, run)
        print(pid, flush=True)  # noqa: T201 - the answer on a pipe


def _resolve(name: str) -> Callable[[], object]:
    module, _, function = name.partition(":")
    found: Callable[[], object] = getattr(importlib.import_module(module), function)
    return found


def _become(request: Mapping[str, Any], run: Callable[[], object]) -> NoReturn:
    """The child: a session, an environment and a log of its own, then the server until its end."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(request["environment"])
        run()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
