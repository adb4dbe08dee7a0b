"""The configuration files of one node: containerd, its network plugins, the kubelet. Pure text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

PAUSE_IMAGE = "localhost/pause:1"
DNS_READY_PORT = 8181
DOMAIN = "cluster.local"


@dataclass(frozen=True, kw_only=True)
class NodePaths:
    """Where one node keeps things."""

    state: Path  # images, volumes and pod logs: on a disk that overlayfs can lie on
    run: Path  # sockets, whose paths must be short
    plugins: Path  # the CNI programs

    @property
    def containerd_socket(self) -> Path:
        """Where containerd listens."""
        return self.run / "containerd.sock"

    @property
    def pod_logs(self) -> Path:
        """What the containers print, a folder a pod."""
        return self.state / "pod-logs"

    @property
    def cni(self) -> Path:
        """The configuration of the pods' network."""
        return self.state / "cni"


def containerd(paths: NodePaths) -> str:
    """The configuration of containerd (TOML, version 3)."""
    runtime = "plugins.'io.containerd.cri.v1.runtime'"
    return f"""\
version = 3
root = "{paths.state / "containerd"}"
state = "{paths.run / "containerd"}"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing"]

[grpc]
address = "{paths.containerd_socket}"

[ttrpc]
address = "{paths.run / "containerd.ttrpc.sock"}"

[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE_IMAGE}"

[{runtime}]
# Without CAP_SYS_RESOURCE a lower score than the daemon's own is refused, and runc dies of it.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

[{runtime}.containerd]
default_runtime_name = "runc"

[{runtime}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[{runtime}.containerd.runtimes.runc.options]
SystemdCgroup = false

[{runtime}.cni]
bin_dirs = ["{paths.plugins}"]
conf_dir = "{paths.cni}"
"""


def pod_network(paths: NodePaths, *, pod_cidr: str) -> str:
    """The pods' network: one bridge, addresses from the node's range, ports mapped on request."""
    return json.dumps(
        {
            "cniVersion": "1.0.0",
            "name": "weir",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "weir-pods",
                    "isGateway": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(paths.state / "addresses"),
                        "ranges": [[{"subnet": pod_cidr}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        },
        indent=1,
    )


def dns(*, address: str, kubeconfig: Path) -> str:
    """CoreDNS' configuration: Services have names, and nothing else has."""
    return f"""\
{DOMAIN}:53 in-addr.arpa:53 {{
    bind {address}
    errors
    ready {address}:{DNS_READY_PORT}
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
}}
.:53 {{
    bind {address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def kubelet(paths: NodePaths, *, address: str, authority: Path, control_group: str) -> str:
    """The kubelet's configuration (JSON, which is YAML too)."""
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{control_group}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,  # a lower one needs CAP_SYS_RESOURCE
            "containerRuntimeEndpoint": f"unix://{paths.containerd_socket}",
            "podLogsDir": str(paths.pod_logs),
            "resolvConf": "/dev/null",  # pods get the cluster's DNS alone
            "clusterDNS": [address],
            "clusterDomain": DOMAIN,
            # The machine is shared: only a really full one evicts.
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
                "imagefs.inodesFree": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeStatusReportFrequency": "10s",
            "syncFrequency": "5s",
            "shutdownGracePeriod": "0s",
        },
        indent=1,
    )
