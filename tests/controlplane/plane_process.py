"""The control plane as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx

FOLDER = Path(__file__).parents[2] / "controlplane"
PROGRAM = "from weir_controlplane.main import run; run()"


def start(log: Path, **settings: object) -> subprocess.Popen[bytes]:
    """Starts one with these settings and no others; its words are appended to ``log``."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(FOLDER),
        **{f"WEIR_{name.upper()}": str(value) for name, value in settings.items()},
    }
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdout=output, stderr=output
        )


def is_ready(url: str) -> bool:
    """Whether `/readyz` answers 200 now."""
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
