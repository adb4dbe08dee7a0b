"""A real Kubernetes API: etcd, kube-apiserver and kube-controller-manager, without a node.

Nothing here runs pods: `node.py` adds that. Everything lives in one folder and on ports of its
own, so that any number of servers can run beside each other.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from e2e.cluster.audit import POLICY, AuditLog
from e2e.cluster.binaries import Binaries
from e2e.cluster.certificates import Authority, service_account_keys
from e2e.cluster.component import Component
from e2e.cluster.kubeconfig import Endpoint
from e2e.cluster.kubectl import Kubectl
from tests.support.processes import free_port

ADMINS = "system:masters"
ISSUER = "https://kubernetes.default.svc"
AUDIT_LOG_MEGABYTES = 10_000  # never rotated: readers hold positions in it


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where the servers listen, and the command that takes a process there."""

    address: str = "127.0.0.1"
    service_cidr: str = "10.96.0.0/16"
    api_service_address: str = "10.96.0.1"  # the API server as pods see it: the range's first
    pod_cidr: str | None = None  # None: there is no node, so no pod gets an address
    enter: tuple[str, ...] = ()


class ApiServer:
    """One API server with its store and its controllers, started and ended together."""

    def __init__(self, folder: Path, binaries: Binaries, *, site: Site | None = None) -> None:
        """Makes keys and commands in ``folder``, which must exist; starts nothing yet.

        Raises:
            NoBinaryError: a program is neither given nor built.
        """
        self.folder = folder
        self.binaries = binaries
        self.site = site or Site()
        self.authority = Authority(folder)
        self.audit = AuditLog(folder / "audit.log")
        self.endpoint = Endpoint(
            url=f"https://{self.site.address}:{free_port()}", authority=self.authority.certificate
        )
        self.kubeconfig = self.user_kubeconfig("admin", groups=(ADMINS,))
        self.kubectl = Kubectl(binary=binaries.path("kubectl"), kubeconfig=self.kubeconfig)
        self._etcd_url = f"http://{self.site.address}:{free_port()}"
        self._keys = service_account_keys(folder)
        self._tls = ssl.create_default_context(cafile=str(self.authority.certificate))
        self.etcd = self.component("etcd", self._etcd_options(), ready=self._etcd_ready)
        self.server = self.component("kube-apiserver", self._server_options(), ready=self.ready)
        self.controllers = self.component(
            "kube-controller-manager", self._controller_options(), ready=self._controllers_ready
        )

    def start(self) -> None:
        """Starts everything; returns when the API serves and controllers work.

        Raises:
            ComponentError: a process ended or is not ready in time; its log says why.
        """
        for component in (self.etcd, self.server, self.controllers):
            component.start()
            component.wait_ready()

    def close(self) -> None:
        """Ends everything; the folder stays."""
        for component in (self.controllers, self.server, self.etcd):
            component.stop()

    def ready(self) -> bool:
        """Whether the API server says that it is ready now."""
        try:
            return self._get(f"{self.endpoint.url}/readyz") == 200
        except httpx.TransportError:
            return False

    def component(
        self,
        name: str,
        options: Sequence[str],
        *,
        ready: Callable[[], bool] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Component:
        """One of the cluster's programs as a process at its site, not started yet."""
        command: list[str | Path] = [*self.site.enter, self.binaries.path(name), *options]
        return Component(name, command, folder=self.folder, ready=ready, environment=environment)

    def user_kubeconfig(self, user: str, *, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig file with which ``user`` reaches this server by a client certificate."""
        name = user.replace(":", "-")
        certificate, key = self.authority.issue(name, user=user, groups=groups)
        path = self.folder / f"{name}.kubeconfig"
        return self.endpoint.with_certificate(path, certificate, key)

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """A kubeconfig file with a token of an hour for a ServiceAccount that exists.

        Raises:
            KubectlError: there is no such ServiceAccount.
        """
        token = self.kubectl.inside(namespace).run("create", "token", name, "--duration=1h")
        path = self.folder / f"{namespace}-{name}.kubeconfig"
        return self.endpoint.with_token(path, token.stdout.strip(), namespace=namespace)

    def apply_crds(self, folder: Path) -> None:
        """Applies the CRDs of a folder and waits until the API serves them.

        Raises:
            KubectlError: the API server refuses one; the message is the server's.
        """
        if not any(folder.glob("*.yaml")):
            return
        self.kubectl.run("apply", "--server-side", "--force-conflicts", "-f", folder)
        self.kubectl.run("wait", "--for=condition=Established", "-f", folder, "--timeout=60s")

    def _get(self, url: str) -> int:
        return httpx.get(url, verify=self._tls, timeout=2, trust_env=False).status_code

    def _etcd_ready(self) -> bool:
        try:
            return self._get(f"{self._etcd_url}/health") == 200
        except httpx.TransportError:
            return False

    def _controllers_ready(self) -> bool:
        """Whether a namespace got its ServiceAccount: without it the API server refuses pods."""
        found = self.kubectl.inside("default").try_run("get", "serviceaccount", "default")
        return found.ok

    def _etcd_options(self) -> list[str]:
        return [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            "--listen-peer-urls=http://127.0.0.1:0",
            "--unsafe-no-fsync",  # tests kill processes, never the machine
            "--log-level=warn",
        ]

    def _server_options(self) -> list[str]:
        site = self.site
        hosts = (site.address, site.api_service_address, "localhost", "kubernetes.default.svc")
        certificate, key = self.authority.issue("apiserver", user="kube-apiserver", hosts=hosts)
        private, public = self._keys
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(POLICY))
        return [
            f"--etcd-servers={self._etcd_url}",
            f"--bind-address={site.address}",
            f"--secure-port={httpx.URL(self.endpoint.url).port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self.authority.certificate}",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={private}",
            f"--service-cluster-ip-range={site.service_cidr}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",  # pod security decides, a namespace at a time, as in any cluster
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.folder / 'audit.log'}",
            f"--audit-log-maxsize={AUDIT_LOG_MEGABYTES}",
            "--profiling=false",
            *(self._node_options() if site.pod_cidr else self._lone_options()),
        ]

    def _lone_options(self) -> list[str]:
        # A loopback address is refused as the endpoint of the `kubernetes` Service.
        return [f"--advertise-address={self.site.address}", "--endpoint-reconciler-type=none"]

    def _node_options(self) -> list[str]:
        certificate, key = self.authority.issue(
            "kubelet-client", user="kube-apiserver-kubelet-client", groups=(ADMINS,)
        )
        return [
            f"--advertise-address={self.site.address}",
            f"--kubelet-client-certificate={certificate}",
            f"--kubelet-client-key={key}",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _controller_options(self) -> list[str]:
        addresses = (
            ["--allocate-node-cidrs", f"--cluster-cidr={self.site.pod_cidr}"]
            if self.site.pod_cidr
            else []
        )
        return [
            f"--kubeconfig={self.user_kubeconfig('controllers', groups=(ADMINS,))}",
            f"--service-account-private-key-file={self._keys[0]}",
            f"--root-ca-file={self.authority.certificate}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--secure-port=0",  # nobody asks it anything
            *addresses,
        ]
