"""A whole Kubernetes cluster of one node on this machine: made, used, and removed without a trace.

Only one runs at a time: its network namespace, control group and folders have fixed names, so that
whatever a killed run left behind is found and removed by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from e2e.cluster import archive, packages
from e2e.cluster.api_server import ApiServer, Site
from e2e.cluster.binaries import CACHE, Binaries
from e2e.cluster.cgroup import ControlGroup
from e2e.cluster.mounts import unmount_below
from e2e.cluster.network import Addresses, Network
from e2e.cluster.node import Node
from e2e.cluster.node_config import PAUSE_IMAGE, NodePaths

NAME = "weir"
GROUP = "weir-cluster"
STATE = Path("/var/tmp/weir-cluster")  # noqa: S108 - only root can make it, and the mode is 0700
RUN = Path("/run/weir-cluster")
LOGS = CACHE / "logs"
KEPT_LOGS = 10  # of the latest failures
CONTAINER_LOGS = Path("/var/log/containers")
# Where the programs make folders whatever they are told; empty ones are removed afterwards.
FOOTPRINTS = (
    CONTAINER_LOGS,
    Path("/run/containerd"),
    Path("/var/lib/cni"),
    Path("/var/lib/kubelet"),
)


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
        self.api: ApiServer | None = None
        self.node: Node | None = None

    def up(self) -> tuple[ApiServer, Node]:
        """Makes and starts everything; the API server and the node, which is Ready.

        Raises:
            ClusterError: not root, or another cluster runs here.
            MissingPackageError: a Debian package is missing and cannot be installed.
            ComponentError: a process ended or is not ready in time.
        """
        if os.geteuid() != 0:
            raise ClusterError(
                "a cluster needs root (namespaces, mounts, control groups): use sudo"
            )
        self._hold()
        packages.install(packages.NODE)
        self._sweep()
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
        self._sweep()
        self._lock.close()
        self._lock = None

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
        if pods.exists():
            shutil.copytree(pods, kept / "pods")
        if self.api is not None and self.api.ready():
            for kind in ("events", "pods", "llmservices,batchjobs"):
                said = self.api.kubectl.try_run("get", kind, "--all-namespaces", "--output=yaml")
                (kept / f"{kind}.yaml").write_text(said.stdout + said.stderr)
        return kept

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
        lock = Path("/run/weir-cluster.lock").open("a+")  # noqa: SIM115 - held until `down`
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip()
            lock.close()
            raise ClusterError(
                f"another cluster runs on this machine (process {holder}): end it first"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def _sweep(self) -> None:
        """Removes what a run left behind: processes, mounts, network, control groups, folders."""
        if not self._group.kill():
            raise ClusterError(f"processes {self._group.pids()} of an earlier cluster do not end")
        for folder in (STATE, RUN):
            unmount_below(folder)
        self._network.remove()
        self._group.remove()
        if CONTAINER_LOGS.is_dir():
            for link in CONTAINER_LOGS.iterdir():
                if link.is_symlink() and link.readlink().is_relative_to(STATE):
                    link.unlink()
        for folder in (STATE, RUN):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in FOOTPRINTS:
            _prune(folder)


def _prune(folder: Path) -> None:
    """Removes the empty folders of a tree, its root included."""
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):  # another program keeps something there
            Path(path).rmdir()


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
