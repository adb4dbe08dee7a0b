"""A whole Kubernetes cluster of one node on this machine: made, used, and removed without a trace.

Only one runs at a time: its network namespace, control group and folders have fixed names, so that
whatever a killed run left behind is found and removed by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from e2e.cluster import archive, packages
from e2e.cluster.api_server import ApiServer, Site
from e2e.cluster.binaries import CACHE, Binaries
from e2e.cluster.cgroup import ControlGroup
from e2e.cluster.footprint import GROUP, NAME, RUN, STATE, Guard, sweep
from e2e.cluster.kubectl import KubectlError
from e2e.cluster.network import Addresses, Network
from e2e.cluster.node import Node
from e2e.cluster.node_config import PAUSE_IMAGE, NodePaths

LOGS = CACHE / "logs"
KEPT_LOGS = 10  # of the latest failures
KEPT_WARNINGS = 20
LOCK = Path("/run/weir-cluster.lock")
HANDOVER_S = 30  # of a run that was killed, whose guard still removes things


class ClusterError(RuntimeError):
    """The cluster cannot run here; the message names the reason and the remedy."""


class Cluster:
    """One node, its control plane and its network, all on this machine."""

    def __init__(self, binaries: Binaries) -> None:
        """Nothing is made yet. ``binaries`` must have every program, or builds it."""
        self._binaries = binaries
        self._network = Network(NAME, Addresses())
        self._group = ControlGroup(GROUP)
        self._lock: IO[str] | None = None
        self._guard: Guard | None = None
        self.api: ApiServer | None = None
        self.node: Node | None = None

    def up(self) -> tuple[ApiServer, Node]:
        """Makes and starts everything; the API server and the node, which is Ready.

        Raises:
            ClusterError: not root, or another cluster runs here.
            RemainsError: processes of an earlier cluster do not end.
            MissingPackageError: a Debian package is missing and cannot be installed.
            ComponentError: a process ended or is not ready in time.
        """
        if os.geteuid() != 0:
            raise ClusterError(
                "a cluster needs root (namespaces, mounts, control groups): use sudo"
            )
        self._hold()
        packages.install(packages.NODE)
        sweep()
        for folder in (STATE, RUN):
            folder.mkdir(mode=0o700)
        self._network.create()
        self._group.create()
        api = self.api = ApiServer(STATE, self._binaries, site=self._site())
        paths = NodePaths(state=STATE, run=RUN, plugins=self._binaries.path("bridge").parent)
        node = self.node = Node(api, paths, control_group=GROUP)
        api.start()
        node.start()
        pause = self._binaries.path("pause")
        node.import_image(archive.of_program(STATE / "pause.tar", name=PAUSE_IMAGE, program=pause))
        return api, node

    def down(self) -> None:
        """Ends and removes everything, however far it came."""
        if self._lock is None:
            return
        if self.node is not None:
            self.node.close()
        if self.api is not None:
            self.api.close()
        sweep()
        if self._guard is not None:
            self._guard.dismiss()
        self._lock.close()
        self._guard = self._lock = None

    def keep_logs(self) -> Path:
        """Copies the log of every component and every pod; the folder with the copies."""
        kept = LOGS / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        kept.mkdir(parents=True)
        logs = sorted(LOGS.iterdir())
        for folder in logs[:-KEPT_LOGS]:
            shutil.rmtree(folder, ignore_errors=True)
        for log in STATE.glob("*.log"):
            shutil.copy(log, kept)
        pods = STATE / "pod-logs"
        with contextlib.suppress(shutil.Error):  # of a pod that went meanwhile
            if pods.exists():
                shutil.copytree(pods, kept / "pods")
        for kind in ("events", "pods", "llmservices,batchjobs"):
            said = self._ask("get", kind, "--all-namespaces", "--output=yaml")
            (kept / f"{kind}.yaml").write_text(said)
        return kept

    def summary(self) -> str:
        """The pods and the latest warnings, for who has no more than what a test run printed."""
        pods = self._ask("get", "pods", "--all-namespaces", "--output=wide")
        warnings = self._ask(
            *("get", "events", "--all-namespaces", "--field-selector=type=Warning"),
            "--sort-by=.lastTimestamp",
        )
        return "\n".join((pods, *warnings.splitlines()[-KEPT_WARNINGS:]))

    def _ask(self, *arguments: str) -> str:
        """What kubectl says; never an error: the failure that is told of is another."""
        if self.api is None or not self.api.ready():
            return "the API server does not answer\n"
        try:
            said = self.api.kubectl.try_run(*arguments)
        except KubectlError as error:
            return f"{error}\n"
        return said.stdout + said.stderr

    def _site(self) -> Site:
        site = self._network.site
        return Site(
            address=site.address,
            service_cidr=site.service_cidr,
            api_service_address=site.api_service_address,
            pod_cidr=site.pod_cidr,
            enter=(*self._group.enter, *site.enter),
        )

    def _hold(self) -> None:
        lock = LOCK.open("a+")
        deadline_s = time.monotonic() + HANDOVER_S
        while not _locked(lock):
            if time.monotonic() > deadline_s:
                lock.seek(0)
                holder = lock.read().strip()
                lock.close()
                raise ClusterError(
                    f"another cluster runs on this machine (process {holder}): end it first"
                )
            time.sleep(0.5)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock
        self._guard = Guard(lock=lock.fileno())


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def running(binaries: Binaries) -> Iterator[tuple[ApiServer, Node]]:
    """A cluster for as long as the block runs; its logs are kept when the block fails."""
    cluster = Cluster(binaries)
    try:
        yield cluster.up()
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt) and STATE.exists():
            error.add_note(f"logs of every component and pod: {cluster.keep_logs()}")
        raise
    finally:
        cluster.down()
