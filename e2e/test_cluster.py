"""The cluster itself: whatever becomes of the process that started it, nothing of it stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from e2e.cluster.binaries import ROOT
from e2e.cluster.cgroup import ControlGroup
from e2e.cluster.footprint import GROUP, NAME, RUN, STATE
from e2e.support.waiting import until


def remains() -> list[str]:
    """What is left of a cluster on this machine."""
    spaces = json.loads(subprocess.check_output(["ip", "-json", "netns", "list"]) or "[]")
    mounts = Path("/proc/self/mountinfo").read_text()
    # As os.walk looks: groups go while it does.
    groups = (path for path, _, _ in os.walk("/sys/fs/cgroup") if Path(path).name == GROUP)
    return [
        *(str(folder) for folder in (STATE, RUN) if folder.exists() or str(folder) in mounts),
        *(str(pid) for pid in ControlGroup(GROUP).pids()),
        *groups,
        *(space["name"] for space in spaces if space["name"] == NAME),
    ]


def test_a_killed_starter_leaves_nothing_behind() -> None:
    starter = subprocess.Popen(
        [sys.executable, "-m", "e2e.cluster"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    assert starter.stdout.readline().startswith("export KUBECONFIG=")
    assert ControlGroup(GROUP).pids() != []
    starter.kill()
    starter.wait()
    starter.stdout.close()
    until(lambda: remains() == [], "everything is removed")
