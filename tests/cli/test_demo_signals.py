"""What ends the demo leaves nothing behind: Ctrl-C, SIGTERM, and a terminal that is closed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from weir_cli.errors import ExitStatus

# The first as its imports take seconds, the second amid its work.
PROGRAM = """
import asyncio, sys, time
from weir_cli import main
from weir_cli.demo import command, run

async def work(folder):
    print(folder, flush=True)
    await asyncio.sleep(600)

def importing(*_given, folder, **_named):
    print(folder, flush=True)
    time.sleep(600)

def working(*_given, folder, **_named):
    run._interruptible(work(folder))

run.run_demo = {"importing": importing, "working": working}[sys.argv[1]]
sys.exit(main.main(["demo"]))
"""


@contextmanager
def inherited(hangup: signal.Handlers) -> Iterator[None]:
    """What a process started meanwhile ignores: nothing, whoever started the tests, but SIGHUP."""
    wanted = {signal.SIGINT: signal.SIG_DFL, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: hangup}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start(
    moment: str, *, hangup: signal.Handlers = signal.SIG_DFL
) -> tuple[subprocess.Popen[str], Path]:
    """A demo at that moment, and its folder."""
    with inherited(hangup):
        demo = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, moment],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    assert demo.stdout is not None
    return demo, Path(demo.stdout.readline().strip())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", ["importing", "working"])
def test_what_ends_the_demo_removes_its_folder(moment: str, number: signal.Signals) -> None:
    demo, folder = start(moment)
    try:
        assert folder.is_dir()
        demo.send_signal(number)
        assert demo.wait(60) == ExitStatus.INTERRUPTED
        assert not folder.exists()
    finally:
        demo.kill()
        demo.communicate()


def test_under_nohup_a_closed_terminal_ends_nothing() -> None:
    demo, folder = start("working", hangup=signal.SIG_IGN)
    try:
        demo.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            demo.wait(1)
        demo.terminate()
        assert demo.wait(60) == ExitStatus.INTERRUPTED
        assert not folder.exists()
    finally:
        demo.kill()
        demo.communicate()
