"""Where and from what a benchmark ran: goes into every result file."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from weir_cli.loadlab.processor import native_dtype


def describe_machine() -> dict[str, Any]:
    """Processor, vLLM's format on it, cores, memory, system, Python, and GPUs."""
    return {
        "processor": _first_value(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "processor_dtype": native_dtype(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average_before": round(os.getloadavg()[0], 2),
        **({"gpus": gpus} if (gpus := _gpus()) else {}),
    }


def _gpus() -> list[str]:
    """Name and memory of each, as NVIDIA's tool tells them; none where it is not installed."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    answer = subprocess.run(query, check=False, capture_output=True, text=True)
    return answer.stdout.splitlines() if answer.returncode == 0 else []


def commit() -> str:
    """The commit of the working tree, marked when files differ from it; empty without git."""
    root = Path(__file__).resolve().parent.parent
    try:
        revision = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return revision + ("+changes" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def _first_value(path: Path, key: str) -> str | None:
    if not path.exists():
        return None
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None
