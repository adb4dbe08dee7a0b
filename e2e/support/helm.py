"""Helm as a function: a release of the chart, installed, upgraded and removed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.binaries import ROOT

CHART = ROOT / "charts" / "weir"


class HelmError(RuntimeError):
    """Helm failed; the message has the command and what it said."""


@dataclass(frozen=True, kw_only=True)
class Helm:
    """One release in one namespace."""

    binary: Path
    kubeconfig: Path
    namespace: str
    release: str

    def install(self, values: Mapping[str, Any], *, folder: Path, timeout_s: int = 400) -> str:
        """Installs or upgrades the chart and waits until it is ready; what Helm said."""
        path = folder / f"{self.release}-values.json"
        path.write_text(json.dumps(values))
        wait = ("--wait", f"--timeout={timeout_s}s")
        return self._run("upgrade", "--install", self.release, str(CHART), f"-f={path}", *wait)

    def uninstall(self, *, timeout_s: int = 300) -> str:
        """Removes the release and waits until it is gone; what Helm said."""
        return self._run("uninstall", self.release, "--wait", f"--timeout={timeout_s}s")

    def test(self, *, timeout_s: int = 120) -> str:
        """Runs the release's own tests; what Helm said."""
        return self._run("test", self.release, "--logs", f"--timeout={timeout_s}s")

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [
                *(self.binary, "--kubeconfig", self.kubeconfig, "--namespace", self.namespace),
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise HelmError(f"helm {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}")
        return done.stdout
