"""Where results go: a full disk, a closed descriptor, a locale of few characters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from weir_cli.errors import ExitStatus

FULL = Path("/dev/full")


def run(redirected: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command under a shell that redirects its output."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "weir_cli", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_full_disk_is_no_defect_of_weir() -> None:
    ended = run(f">{FULL}", "--help")
    assert ended.returncode == ExitStatus.FAILED
    assert "the output cannot be written: No space left on device" in ended.stderr
    assert "defect" not in ended.stderr


def test_results_are_not_sent_to_a_closed_output() -> None:
    ended = run(">&-", "batch", "results", "batch_1", WEIR_API_KEY="key")
    assert ended.returncode == ExitStatus.USAGE
    assert "-o FILE" in ended.stderr


def test_a_locale_of_few_characters_costs_no_output() -> None:
    """What a narrow terminal has no room for ends in an ellipsis, which ASCII lacks."""
    ended = run("", "sim", "--help", PYTHONIOENCODING="ascii", COLUMNS="60")
    assert (ended.returncode, ended.stderr) == (ExitStatus.OK, "")
    assert "--profile" in ended.stdout
