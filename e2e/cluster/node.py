"""One node beside an API server: containerd, kubelet, kube-proxy, and the scheduler.

It joins the network and the control group that it is given; `cluster.py` makes and removes those.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from e2e.cluster import node_config
from e2e.cluster.api_server import ADMINS, ApiServer
from e2e.cluster.node_config import NodePaths

NODE_NAME = "weir-node"
IMAGE_NAMESPACE = "k8s.io"


class ImageError(RuntimeError):
    """An image could not be imported; the message has what containerd said."""


class Node:
    """The processes of one node, and the images that it has."""

    def __init__(self, api: ApiServer, paths: NodePaths, *, control_group: str) -> None:
        """Writes the configuration of a node of ``api`` into ``paths``; starts nothing yet.

        Raises:
            NoBinaryError: a program is neither given nor built.
        """
        self.paths = paths
        self._api = api
        self._write_configuration(control_group)
        self._ctr = api.binaries.path("ctr")
        self.containerd = api.component(
            "containerd",
            [f"--config={paths.state / 'containerd.toml'}"],
            ready=self._containerd_ready,
            # containerd finds its shim, and the shim runc, on PATH.
            environment={"PATH": f"{self._ctr.parent}:{os.environ['PATH']}:/usr/sbin"},
        )
        self.scheduler = api.component(
            "kube-scheduler",
            [
                f"--kubeconfig={api.user_kubeconfig('system:kube-scheduler')}",
                "--leader-elect=false",
                "--secure-port=0",
            ],
        )
        self.kubelet = api.component("kubelet", self._kubelet_options(), ready=self._kubelet_ready)
        self.proxy = api.component("kube-proxy", self._proxy_options())
        self.dns = api.component(
            "coredns", [f"-conf={paths.state / 'Corefile'}"], ready=self._dns_ready
        )

    def start(self) -> None:
        """Starts everything; returns when the node is Ready.

        Raises:
            ComponentError: a process ended or is not ready in time; its log says why.
        """
        self.containerd.start()
        self.containerd.wait_ready()
        for component in (self.scheduler, self.proxy, self.dns, self.kubelet):
            component.start()
        self.dns.wait_ready()
        self.kubelet.wait_ready()

    def close(self) -> None:
        """Ends the node's own processes; what runs in pods is ended with the control group."""
        for component in (self.kubelet, self.dns, self.proxy, self.scheduler, self.containerd):
            component.stop()

    def import_image(self, archive: Path) -> None:
        """Makes the images of a docker-archive available to pods.

        Raises:
            ImageError: containerd refuses the archive.
        """
        done = self._run_ctr("images", "import", "--local", str(archive))
        if done.returncode != 0:
            raise ImageError(f"{archive}: {done.stderr.strip()}")

    def _run_ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [
            self._ctr,
            "--address",
            self.paths.containerd_socket,
            "-n",
            IMAGE_NAMESPACE,
        ]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)

    def _write_configuration(self, control_group: str) -> None:
        site, paths = self._api.site, self.paths
        paths.cni.mkdir(parents=True, exist_ok=True)
        paths.run.mkdir(parents=True, exist_ok=True)
        (paths.state / "containerd.toml").write_text(node_config.containerd(paths))
        (paths.cni / "10-weir.conflist").write_text(
            node_config.pod_network(paths, pod_cidr=str(site.pod_cidr))
        )
        (paths.state / "Corefile").write_text(
            node_config.dns(
                address=site.address,
                kubeconfig=self._api.user_kubeconfig("coredns", groups=(ADMINS,)),
            )
        )
        (paths.state / "kubelet.json").write_text(
            node_config.kubelet(
                paths,
                address=site.address,
                authority=self._api.authority.certificate,
                control_group=control_group,
            )
        )

    def _dns_ready(self) -> bool:
        url = f"http://{self._api.site.address}:{node_config.DNS_READY_PORT}/ready"
        try:
            return httpx.get(url, timeout=2, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _containerd_ready(self) -> bool:
        return self._run_ctr("version").returncode == 0

    def _kubelet_options(self) -> list[str]:
        user = f"system:node:{NODE_NAME}"
        kubeconfig = self._api.user_kubeconfig(user, groups=("system:nodes",))
        return [
            f"--config={self.paths.state / 'kubelet.json'}",
            f"--kubeconfig={kubeconfig}",
            f"--root-dir={self.paths.state / 'kubelet'}",
            f"--cert-dir={self.paths.state / 'kubelet-certificates'}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={self._api.site.address}",
        ]

    def _proxy_options(self) -> list[str]:
        return [
            f"--kubeconfig={self._api.user_kubeconfig('system:kube-proxy')}",
            f"--hostname-override={NODE_NAME}",
            f"--cluster-cidr={self._api.site.pod_cidr}",
            "--proxy-mode=nftables",
            # The kernel's limits belong to the machine: setting them is refused, and not wanted.
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ]

    def _kubelet_ready(self) -> bool:
        """Whether the node says that it is Ready."""
        node = self._api.kubectl.get("node", NODE_NAME)
        return node is not None and _condition(node, "Ready") == "True"


def _condition(found: Mapping[str, Any], kind: str) -> str | None:
    conditions = found.get("status", {}).get("conditions", [])
    return next((str(entry["status"]) for entry in conditions if entry["type"] == kind), None)
