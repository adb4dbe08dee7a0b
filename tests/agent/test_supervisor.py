"""The parent starts the agent again, and only then when that can help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

PATIENCE_S = 120
PROGRAM = """
import ctypes, os, signal, sys, time
from pathlib import Path
from weir_agent.memory import FILE_NAME, MemoryWatch
from weir_agent.supervisor import Supervisor, end_within

folder, plan = Path(sys.argv[1]), sys.argv[2].split(",")
parent, memory = os.getpid(), MemoryWatch(folder, group=folder / "group")
note = folder / FILE_NAME

def hold(anon_bytes):
    group = folder / "group"
    group.mkdir(exist_ok=True)
    (group / "stat").write_text(f"anon {anon_bytes}\\nfile 10000\\nshmem 0\\n")
    (group / "stat").replace(group / "memory.stat")
    (group / "memory.current").write_text(f"{anon_bytes + 10000}\\n")
    (group / "memory.max").write_text("10000\\n")

def tell_child():
    (folder / "new").write_text(str(os.getpid()))
    (folder / "new").replace(folder / "child")  # whole at once, for who waits for it

def wait_until(condition):
    while not condition():
        time.sleep(0.01)

stop_within_s = 1 if "deaf" in plan else 120
if "orphan" in plan:
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER, as process 1 of a container is
if {"early", "orphaned"} & set(plan):
    fork = os.fork

    def slow_fork():
        child = fork()
        if child == 0:
            tell_child()
            time.sleep(0.5)
        else:
            os.kill(os.getpid(), signal.SIGTERM if "early" in plan else signal.SIGKILL)
        return child

    os.fork = slow_fork

if "late" in plan:
    waitpid = os.waitpid

    def waitpid_and_stop(*given):
        ended = waitpid(*given)
        if ended[0]:
            os.kill(os.getpid(), signal.SIGTERM)
        return ended

    os.waitpid = waitpid_and_stop

def work(ready):
    starts = folder / "starts"
    count = len(starts.read_text()) if starts.exists() else 0
    starts.write_text("x" * (count + 1))
    tell_child()
    if supervisor.unrecorded:
        (folder / "told").touch()
    step = plan[min(count, len(plan) - 1)]
    if step not in {"fail-early", "usage"}:
        ready()
    if step == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if step == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if step in {"grow", "grow-all", "shrink"}:
        hold(9_500)
        wait_until(note.exists)
    if step == "shrink":
        hold(100)
        wait_until(lambda: not note.exists())
    if step in {"grow", "shrink"}:
        os.kill(os.getpid(), signal.SIGKILL)
    if step == "grow-all":
        os.kill(parent, signal.SIGKILL)
        time.sleep(300)
    if step == "raise":
        raise RuntimeError("broken")
    if step in {"hang", "hang-unrecorded"}:
        end_within(0.1, 75 if step == "hang" else 76)
        time.sleep(300)
    if step == "orphan" and os.fork() == 0:
        time.sleep(0.2)
        os._exit(0)
    if step in {"serve", "early", "orphaned"}:
        stopped = []
        signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
        (folder / "serving").touch()
        while not stopped:
            time.sleep(0.01)
        return 0
    if step == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / "serving").touch()
        time.sleep(300)
    return {"ok": 0, "usage": 2, "fail-early": 1, "unrecorded": 76}.get(step, 75)

def after_fault():
    times = (folder / "full").stat().st_size if (folder / "full").exists() else 0
    if times < plan.count("full"):
        (folder / "full").write_text("x" * (times + 1))
        raise OSError(28, "No space left on device")
    with (folder / "faults").open("a") as file:
        file.write("x")

supervisor = Supervisor(
    work,
    after_fault=after_fault,
    first_pause_s=0.01,
    stop_within_s=stop_within_s,
    short_of_memory=memory.look,
    ended_short=memory.was_short,
)
sys.exit(supervisor.run())
"""


class Parent:
    def __init__(self, folder: Path, plan: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder), plan],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def wait_for(self, name: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    def count(self, name: str) -> int:
        path = self.folder / name
        return len(path.read_text()) if path.exists() else 0


@pytest.mark.parametrize(
    ("plan", "status", "starts", "faults"),
    [
        ("ok", 0, 1, 0),
        ("usage", 2, 1, 0),
        ("fail-early", 1, 1, 0),
        ("died,died,ok", 0, 3, 0),
        ("died,usage,ok", 0, 3, 0),  # the model that the settings name was away for a while
        ("segv,ok", 0, 2, 1),
        ("segv,ok,full", 0, 2, 1),
        ("unrecorded,ok", 0, 2, 1),
        ("unrecorded,ok,full", 0, 2, 1),
        ("kill,kill,ok", 0, 3, 0),
        ("grow,ok", 0, 2, 1),
        ("shrink,ok", 0, 2, 0),
        ("raise,ok", 0, 2, 0),
        ("hang,ok", 0, 2, 0),
        ("hang-unrecorded,ok", 0, 2, 1),
    ],
)
def test_what_is_started_again(
    tmp_path: Path, plan: str, status: int, starts: int, faults: int
) -> None:
    """Design §8 rule 5: a kill from outside suspects nobody, a fault of the process does.

    Neither does page cache that fills a container up, but memory that cannot be taken back.
    """
    parent = Parent(tmp_path, plan)
    assert parent.process.wait(PATIENCE_S) == status
    assert (parent.count("starts"), parent.count("faults")) == (starts, faults)


def test_a_death_that_a_child_was_told_of_is_not_put_on_its_own_lines(tmp_path: Path) -> None:
    """It could not be recorded until the child had loaded its engine, which then does that."""
    parent = Parent(tmp_path, "unrecorded,kill,ok,full,full")
    assert parent.process.wait(PATIENCE_S) == 0
    assert (tmp_path / "told").exists()
    assert (parent.count("starts"), parent.count("faults")) == (3, 0)


def test_a_container_that_is_killed_whole_for_its_memory_had_a_fault(tmp_path: Path) -> None:
    """The kernel leaves nobody to say so, and the line that did it would run again and again."""
    killed = Parent(tmp_path, "grow-all")
    assert killed.process.wait(PATIENCE_S) == -signal.SIGKILL
    assert killed.count("faults") == 0
    (tmp_path / "group" / "memory.current").write_text("100\n")
    for _ in range(2):
        later = Parent(tmp_path, "ok")
        assert later.process.wait(PATIENCE_S) == 0
        assert later.count("faults") == 1


def test_sigterm_is_passed_on_and_ends_in_order(tmp_path: Path) -> None:
    parent = Parent(tmp_path, "died,serve")
    parent.wait_for("serving")
    parent.process.terminate()
    assert parent.process.wait(PATIENCE_S) == 0
    assert parent.count("starts") == 2


def test_a_sigterm_amid_a_start_is_not_lost(tmp_path: Path) -> None:
    """It comes when the parent does not know its child yet, and the child not that it is one."""
    parent = Parent(tmp_path, "early")
    assert parent.process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert not (tmp_path / "serving").exists()


def test_a_sigterm_that_comes_as_the_child_ends_is_an_orderly_end(tmp_path: Path) -> None:
    """There is nobody any more to pass it on to."""
    parent = Parent(tmp_path, "late")
    assert parent.process.wait(PATIENCE_S) == 0
    assert parent.count("starts") == 1


def test_what_children_left_behind_is_collected(tmp_path: Path) -> None:
    """An engine outlives its agent by a moment, and nobody else would wait for it."""
    parent = Parent(tmp_path, "orphan,orphan,serve")
    parent.wait_for("serving")
    deadline_s = time.monotonic() + PATIENCE_S
    while len(_children(parent.process.pid)) > 1:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    parent.process.terminate()
    assert parent.process.wait(PATIENCE_S) == 0


def test_a_child_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    parent = Parent(tmp_path, "deaf")
    parent.wait_for("serving")
    parent.process.terminate()
    assert parent.process.wait(PATIENCE_S) == 128 + signal.SIGKILL


def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    parent = Parent(tmp_path, "serve")
    parent.wait_for("serving")
    child = int((tmp_path / "child").read_text())
    parent.process.kill()
    parent.process.wait(PATIENCE_S)
    deadline_s = time.monotonic() + PATIENCE_S
    while _runs(child):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_child_whose_parent_died_amid_its_start_does_not_begin(tmp_path: Path) -> None:
    """It would serve beside the next one, on the same port and data folder."""
    parent = Parent(tmp_path, "orphaned")
    assert parent.process.wait(PATIENCE_S) == -signal.SIGKILL
    parent.wait_for("child")
    child = int((tmp_path / "child").read_text())
    deadline_s = time.monotonic() + PATIENCE_S
    while _runs(child):
        assert not (tmp_path / "serving").exists()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert not (tmp_path / "serving").exists()


SERVES = """
import asyncio, resource, sys
from weir_agent.assembly import build_server
from weir_agent.settings import load_settings
from weir_agent.supervisor import allow_many_files, bind

resource.setrlimit(resource.RLIMIT_NOFILE, (128, 4096))
allow_many_files()
answers = asyncio.Event()

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
    await answers.wait()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"answer"})

async def ask(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\\r\\nhost: here\\r\\n\\r\\n")
    try:
        return (await reader.readline()).split()[1]
    finally:
        writer.close()

async def main():
    bound = bind("127.0.0.1", 0)
    server = build_server(app, load_settings())
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started:
        await asyncio.sleep(0.01)
    asks = [asyncio.create_task(ask(bound.getsockname()[1])) for _ in range(300)]
    await asyncio.sleep(1)
    answers.set()
    print((await asyncio.gather(*asks)).count(b"200"))
    server.should_exit = True
    await serving

asyncio.run(main())
"""


def test_more_clients_than_a_container_may_have_files_are_answered() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVES],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.split() == ["300"]


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # gone, before or while it was read
        return False
