"""The engine as a benchmark runs it: interpreted, or compiled where `make compiled` has made it.

Each run is a process of its own, on one core.
"""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weir_engine.sched import scheduler

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "node_agent"
COMPILED = ROOT / "build" / "compiled"
# NumPy's threads wait for work by spinning, which counts as processor time.
_ONE_CORE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class StaleBuildError(Exception):
    """The compiled engine was made from other sources than there are now."""


class CompiledEngineError(Exception):
    """Parts of a compiled engine cannot be replaced: it would run whole, and nobody would know."""


def this_build() -> str:
    """What runs in this process: "interpreted" or "compiled"."""
    return "interpreted" if str(scheduler.__file__).endswith(".py") else "compiled"


def must_be_interpreted(what: str) -> None:
    """Refuses to replace parts of a compiled engine, whose modules call each other directly.

    Raises:
        CompiledEngineError: the engine of this process is compiled.
    """
    if this_build() != "interpreted":
        raise CompiledEngineError(
            f"{what} replaces parts of the engine, which a compiled one ignores: run it without "
            "build/compiled on PYTHONPATH (--resume and --folder keep what is finished)"
        )


def builds(compiled: Path = COMPILED, sources: Path = SOURCES) -> tuple[str, ...]:
    """What can be run here.

    Raises:
        StaleBuildError: the sources have changed since they were compiled.
    """
    if not compiled.exists():
        return ("interpreted",)
    for path in sorted(sources.glob("weir_engine/**/*.py")):
        copied = compiled / path.relative_to(sources)
        if not copied.exists() or not filecmp.cmp(path, copied, shallow=False):
            raise StaleBuildError(
                f"{compiled} was made from another {path.relative_to(sources)}: run `make compiled`"
            )
    return ("interpreted", "compiled")


def run_in(build: str, module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Runs ``python -m module`` on that build; what it printed, a line of JSON.

    Raises:
        RuntimeError: it failed, or ran on another build; its own errors are on stderr.
    """
    first = COMPILED if build == "compiled" else SOURCES
    path = os.pathsep.join(filter(None, (str(first), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, **_ONE_CORE, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"python -m {module} {' '.join(arguments)} ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    if found["build"] != build:
        raise RuntimeError(f"{module} was to run {build} and ran {found['build']}")
    return found
