"""The network of a cluster: a namespace of its own, and one link by which the host reaches it.

Nothing in it routes to the world: the host does not forward, and the namespace's default route
ends at the link.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from e2e.cluster.api_server import Site


class NetworkError(RuntimeError):
    """The namespace could not be made; the message has the command and what it said."""


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Which addresses the cluster uses; the host gets routes to all of them."""

    host: str = "172.30.0.254"
    node: str = "172.30.0.1"
    prefix_bits: int = 24
    service_cidr: str = "10.96.0.0/16"
    api_service: str = "10.96.0.1"
    pod_cidr: str = "10.244.0.0/16"


class Network:
    """A named network namespace with a link to the host, made and removed as a whole."""

    def __init__(self, name: str, addresses: Addresses) -> None:
        """``name`` is the namespace's and, with a suffix, the links'; nothing is made yet."""
        self.name = name
        self.addresses = addresses
        self.enter = ("nsenter", f"--net=/var/run/netns/{name}", "--")

    @property
    def site(self) -> Site:
        """Where the cluster's servers listen."""
        return Site(
            address=self.addresses.node,
            service_cidr=self.addresses.service_cidr,
            api_service_address=self.addresses.api_service,
            pod_cidr=self.addresses.pod_cidr,
            enter=self.enter,
        )

    def create(self) -> None:
        """Makes the namespace, the link and the routes.

        Raises:
            NetworkError: a command failed: root is needed, and addresses that are free.
        """
        outside, inside = f"{self.name}-host", f"{self.name}-node"
        bits = self.addresses.prefix_bits
        _run("ip", "netns", "add", self.name)
        try:
            _run("ip", "link", "add", outside, "type", "veth", "peer", inside, "netns", self.name)
            _run("ip", "address", "add", f"{self.addresses.host}/{bits}", "dev", outside)
            _run("ip", "link", "set", outside, "up")
            self._inside("ip", "link", "set", "lo", "up")
            self._inside("ip", "address", "add", f"{self.addresses.node}/{bits}", "dev", inside)
            self._inside("ip", "link", "set", inside, "up")
            self._inside("ip", "route", "add", "default", "dev", inside)
            for setting in ("net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables"):
                path = "/proc/sys/" + setting.replace(".", "/")
                self._inside("sh", "-c", f"echo 1 >{path}")
            for cidr in (self.addresses.service_cidr, self.addresses.pod_cidr):
                _run("ip", "route", "add", cidr, "via", self.addresses.node, "dev", outside)
        except NetworkError:
            self.remove()
            raise

    def remove(self) -> None:
        """Removes the namespace; its links and the host's routes over them go with it."""
        if self.exists():
            _run("ip", "netns", "delete", self.name)

    def exists(self) -> bool:
        """Whether the namespace is there."""
        found: list[dict[str, str]] = json.loads(_run("ip", "-json", "netns", "list") or "[]")
        return any(entry["name"] == self.name for entry in found)

    def _inside(self, *command: str) -> None:
        _run(*self.enter, *command)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
