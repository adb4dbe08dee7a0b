"""What an engine process inherits from its agent's process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from weir_agent.vllm_bridge import environment

PATIENCE_S = 120
PROGRAM = """
import os, signal, socket, sys
from weir_agent.vllm_bridge import environment

environment.is_cpu_build = lambda: sys.argv[1] == "cpu"
environment.start_engine_by_fork()
woken, wakes = socket.socketpair()
woken.setblocking(False)
wakes.setblocking(False)
signal.set_wakeup_fd(wakes.fileno())  # as event loops do
signal.signal(signal.SIGTERM, lambda *_: None)
if (engine := os.fork()) == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
os.waitpid(engine, 0)
try:
    print("woken by", *woken.recv(8))
except BlockingIOError:
    print("asleep")
"""


@pytest.mark.parametrize("build", ["cpu", "gpu"])
def test_a_signal_to_the_engine_alone_is_none_to_its_agent(build: str) -> None:
    """vLLM forks its engine on GPUs too."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, build],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.strip() == "asleep"


def test_garbage_is_collected_again_after_imports_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heavy_module.py").write_text("import gc\ncollecting = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(environment, "_HEAVY", ("heavy_module", "heavy_module.missing"))
    with pytest.raises(ImportError, match="missing"):
        environment.preload()
    assert sys.modules.pop("heavy_module").collecting is False
    assert gc.isenabled()
