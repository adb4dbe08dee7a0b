"""A start that cannot work is told in one line, before anything heavy is imported."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weir_agent.main import run
from weir_agent.settings import load_settings
from weir_agent.supervisor import Exit


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("0.31.2", 'vLLM 0.31.2 is installed and Weir supports 0.32.x: install "vllm==0.32.*"'),
        (None, "vLLM is not installed: install it"),
    ],
)
def test_a_vllm_that_is_not_supported_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    found: str | None,
    said: str,
) -> None:
    def version(name: str) -> str:
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    settings = load_settings(data_dir=tmp_path / "data", engine_args=("--model", "m"))
    with pytest.raises(SystemExit) as ended:
        run(settings)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert not (tmp_path / "data").exists()


IMPORTS = """
import sys, time
from pathlib import Path
from weir_agent import main
from weir_agent.settings import load_settings

def preload():
    Path(sys.argv[1], "importing").touch()
    time.sleep(600)

main.preload = preload
main.run(load_settings(data_dir=sys.argv[1], engine_args=("--model", "m")))
"""


@pytest.mark.vllm
def test_a_sigterm_while_the_engine_is_imported_ends_the_agent(tmp_path: Path) -> None:
    """Process 1 of a container gets only what it handles: the pod would wait for its kill."""
    agent = subprocess.Popen(
        [sys.executable, "-c", IMPORTS, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        deadline_s = time.monotonic() + 120
        while not (tmp_path / "importing").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        agent.terminate()
        assert agent.wait(120) == 128 + signal.SIGTERM  # of its own accord
    finally:
        agent.kill()


HANGS = """
import asyncio, sys, time
from types import SimpleNamespace
from unittest.mock import MagicMock
from weir_agent import main, vllm_bridge

class Agent:
    def __init__(self, settings, engine, *, on_ready):
        self.stores = MagicMock()

    async def run(self, bound):
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
        raise main.EngineDiedError("the engine is gone", recorded=True)

async def start(args, settings, *, identity):
    return object()

vllm_bridge.arguments = MagicMock()
vllm_bridge.serving = SimpleNamespace(start=start)
main.Agent = Agent
main.install_signals = lambda agent: None
main.CLOSE_WITHIN_S = 0.5
sys.exit(main._serve(MagicMock(), None, None, lambda: None, 0))
"""


def test_a_child_ends_though_a_thread_of_it_hangs() -> None:
    """Its loop waits for its threads when it closes, and nobody would start the engine again."""
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == Exit.ENGINE_DIED, done.stderr
    assert "agent.restarts" in done.stdout + done.stderr


SPEAKS = """
import asyncio
import logging
import structlog
from weir_agent.logs import configure_logging, log_loop_errors

configure_logging("info")
structlog.get_logger().info("agent.serving", port=1)

def fail(prompt):
    raise ValueError(prompt)

async def main():
    log_loop_errors(asyncio.get_running_loop())
    try:
        try:
            fail("once upon a time")
        except ValueError as error:
            raise RuntimeError("of: once upon a time") from error
    except RuntimeError:
        structlog.get_logger().exception("sync.fault")
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application")
    asyncio.get_running_loop().call_soon(fail, "once upon a time")
    await asyncio.sleep(0.01)

asyncio.run(main())
"""


def test_the_agents_log_tells_of_errors_by_place_alone() -> None:
    """§8, Security: logs carry ids, never prompts."""
    done = subprocess.run(
        [sys.executable, "-c", SPEAKS], capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == [
        "agent.serving",
        "sync.fault",
        "Exception in ASGI application",
        "event_loop.error",
    ]
    for line in lines[1:3]:
        assert line["exception"].startswith("RuntimeError, raised at\n  <string>:")
        assert "\nafter ValueError, raised at" in line["exception"]
    assert " in fail" in lines[3]["exception"]
    assert "once upon" not in done.stderr
