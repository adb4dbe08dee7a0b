"""Weir as a user has it: the chart installed, a namespace with a service, and clients of both."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai import OpenAI

from e2e.cluster.api_server import ApiServer
from e2e.cluster.binaries import ROOT
from e2e.cluster.images import CACHE, PYTHON, STORES, Images
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.node import Node
from e2e.support import volumes
from e2e.support.helm import Helm
from e2e.support.manifests import MODEL, REPLICAS, SERVICE, llm_service
from e2e.support.traffic import Traffic
from e2e.support.waiting import condition, until, until_condition
from tests.support.tiny import write_tiny_model
from weir_cli.api import Api
from weir_cli.models import KeyRequest
from weir_cli.settings import ClientSettings

SYSTEM = "weir-system"
SHOP = "shop"
RELEASE = "weir"
TENANT = "shop"
VERSION = "0.1.0"
ALONE = "ReadWriteOnce"
WRITING = "ReadWriteMany"
AGENT_PORT = 8000
DEPLOYMENTS = (f"{RELEASE}-operator", f"{RELEASE}-controlplane")
OPERATOR_ACCOUNT = f"system:serviceaccount:{SYSTEM}:{RELEASE}-operator"
COMPONENTS = ("operator", "controlplane", "agent")
OWN_CLAIMS = {"data": f"data-{RELEASE}-postgresql-0", "files": f"{RELEASE}-files"}
"""Claims of the chart by the volume that waits for each."""
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
VALUES: Mapping[str, Any] = {
    "images": {"registry": "localhost", "pullPolicy": "Never"},
    "database": {"inChart": {"image": STORES.name}},
    "redis": {"inChart": {"image": STORES.name}},
    "controlplane": {"settings": {"default_tenant": TENANT}},
}


def build_images() -> list[Path]:
    """The archives of every image that the chart asks for, built from this checkout."""
    images = Images()
    with images.alone():
        archives = [images.system(STORES)]
        for component in COMPONENTS:
            name = f"localhost/weir-{component}:{VERSION}"
            dockerfile = ROOT / "images" / f"{component}.Dockerfile"
            archives.append(images.build(name, dockerfile=dockerfile, base=PYTHON))
    return archives


class Platform:
    """A cluster with Weir on it, and a namespace `shop` whose pods are restricted."""

    def __init__(self, api: ApiServer, node: Node) -> None:
        """Nothing is done yet: `prepare`, then `install`."""
        self.api = api
        self.node = node
        self.system: Kubectl = api.kubectl.inside(SYSTEM)
        self.shop: Kubectl = api.kubectl.inside(SHOP)
        self.helm = Helm(
            binary=api.binaries.path("helm"),
            kubeconfig=api.kubeconfig,
            namespace=SYSTEM,
            release=RELEASE,
        )

    def prepare(self, archives: Iterable[Path]) -> None:
        """Imports images, and makes namespaces and volumes."""
        for archive in archives:
            self.node.import_image(archive)
        for name in (SYSTEM, SHOP):
            metadata = {"name": name, "labels": RESTRICTED}
            self.api.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        self._make_volumes()

    def install(self, values: Mapping[str, Any] | None = None) -> str:
        """Installs or upgrades the chart with the values of this cluster and the given ones."""
        return self.helm.install({**VALUES, **(values or {})}, folder=self.api.folder)

    def serve(self) -> None:
        """Applies the LLMService; returns when it is Available."""
        self.shop.apply(llm_service())
        until_condition(self.shop, "llmservice", SERVICE, "Available")

    def settled(self) -> None:
        """Returns when every Deployment of Weir and every replica of the service is ready."""
        until(self.is_settled, "every pod is ready")

    def is_settled(self) -> bool:
        """Whether every pod of Weir and every replica of the service is ready."""
        wanted = {**dict.fromkeys(DEPLOYMENTS, 2), f"{RELEASE}-redis": 1}
        ready = {
            found["metadata"]["name"]: found["status"].get("readyReplicas", 0)
            for found in self.system.list("deployments")
        }
        database = self.system.get("statefulset", f"{RELEASE}-postgresql") or {"status": {}}
        return (
            all(ready.get(name) == count for name, count in wanted.items())
            and database["status"].get("readyReplicas") == 1
            and len(self.replicas()) == REPLICAS
        )

    def address(self, kubectl: Kubectl, service: str) -> str:
        """The base URL of a Service, reachable from this machine."""
        found = kubectl.get("service", service)
        if found is None:
            raise LookupError(f"there is no Service {service} in {kubectl.namespace}")
        return f"http://{found['spec']['clusterIP']}:{found['spec']['ports'][0]['port']}"

    @property
    def control_plane(self) -> str:
        """The base URL of the control plane, as this machine reaches it."""
        return self.address(self.system, self.control_plane_name)

    @property
    def control_plane_name(self) -> str:
        """The name of its Service."""
        return f"{RELEASE}-controlplane"

    def replicas(self) -> list[dict[str, Any]]:
        """The service's pods that are ready and stay, the oldest first."""
        found = self.shop.list("pods", f"--selector=weir.dev/llmservice={SERVICE}")
        staying = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return sorted(
            (pod for pod in staying if condition(pod, "Ready").get("status") == "True"),
            key=lambda pod: str(pod["metadata"]["creationTimestamp"]),
        )

    def is_endpoint(self, pod: Mapping[str, Any]) -> bool:
        """Whether the service's address leads to a pod of it."""
        slices = self.shop.list(
            "endpointslices", f"--selector=kubernetes.io/service-name={SERVICE}"
        )
        return any(
            entry["conditions"].get("ready") and entry["targetRef"]["uid"] == pod["metadata"]["uid"]
            for found in slices
            for entry in found.get("endpoints") or ()
        )

    @contextmanager
    def online(self) -> Iterator[OpenAI]:
        """The unmodified client on the service's endpoint."""
        url = f"{self.address(self.shop, SERVICE)}/v1"
        with OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=60) as client:
            yield client

    def traffic(self, pod: Mapping[str, Any] | None = None) -> Traffic:
        """Online requests through the service's address, or straight to one of its pods."""
        if pod is None:
            return Traffic(f"{self.address(self.shop, SERVICE)}/v1", MODEL)
        return Traffic(f"http://{pod['status']['podIP']}:{AGENT_PORT}/v1", MODEL)

    def tenant_key(self, tenant: str = TENANT) -> str:
        """A new key of a tenant, made with the admin key that the chart generated."""
        secret = self.system.get("secret", f"{RELEASE}-admin-key")
        if secret is None:
            raise LookupError(f"there is no Secret {RELEASE}-admin-key")
        admin = base64.b64decode(secret["data"]["key"]).decode()
        settings = ClientSettings.model_validate({"url": self.control_plane, "api_key": admin})
        api = Api(settings)
        try:
            if tenant != TENANT:  # that one is made by the control plane itself
                api.create_tenant(tenant)
            return api.create_key(KeyRequest(scope="tenant", tenant=tenant)).key
        finally:
            api.close()

    @contextmanager
    def batches(self, key: str) -> Iterator[OpenAI]:
        """The unmodified client on the control plane, with a tenant's key."""
        with OpenAI(base_url=f"{self.control_plane}/v1", api_key=key, timeout=60) as client:
            yield client

    def _make_volumes(self) -> None:
        folder = self.api.folder / "volumes"
        models = volumes.empty_folder(folder / "models")
        write_tiny_model(models / "tiny")
        reading = "ReadOnlyMany"
        packages = volumes.engine_packages()
        cache = CACHE / "vllm"
        cache.mkdir(parents=True, exist_ok=True)
        cache.chmod(volumes.WRITABLE)
        self.api.kubectl.apply(
            *(
                volumes.volume(
                    name, volumes.empty_folder(folder / name), modes=[ALONE], claim=(SYSTEM, claim)
                )
                for name, claim in OWN_CLAIMS.items()
            ),
            volumes.volume("engine", packages, modes=[reading], claim=(SHOP, "engine")),
            volumes.volume("cache", cache, modes=[WRITING], claim=(SHOP, "cache")),
            volumes.volume("models", models, modes=[reading], claim=(SHOP, "models")),
        )
        modes = {"engine": reading, "models": reading, "cache": WRITING}
        self.shop.apply(
            *(volumes.claim(name, mode=mode, volume_name=name) for name, mode in modes.items())
        )
