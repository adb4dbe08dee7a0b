"""Mounts below a folder: found in the kernel's list and taken away, the innermost first."""

from __future__ import annotations

import subprocess
from pathlib import Path

MOUNT_POINT = 4  # of a line in mountinfo


def unmount_below(folder: Path) -> None:
    """Takes away every mount on or below ``folder``."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [Path(_unescaped(line.split()[MOUNT_POINT])) for line in lines]
    for point in reversed([point for point in points if point.is_relative_to(folder)]):
        # Lazily: a process of another namespace may still look at it.
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)


def _unescaped(text: str) -> str:
    return text.encode().decode("unicode_escape")
