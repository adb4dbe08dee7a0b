"""Weir as a user has it: the chart installed, a namespace with a service, and clients of both."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from openai import OpenAI

from e2e.cluster.api_server import ApiServer
from e2e.cluster.binaries import ROOT
from e2e.cluster.images import CACHE, PYTHON, STORES, Images
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.node import Node
from e2e.support import volumes
from e2e.support.helm import Helm
from tests.support.tiny import write_tiny_model
from weir_cli.api import Api, KeyRequest
from weir_cli.settings import ClientSettings

SYSTEM = "weir-system"
SHOP = "shop"
RELEASE = "weir"
TENANT = "shop"
MODEL = "chat"
VERSION = "0.1.0"
WRITING = "ReadWriteMany"
COMPONENTS = ("operator", "controlplane", "agent")
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
VALUES: Mapping[str, Any] = {
    "images": {"registry": "localhost", "pullPolicy": "Never"},
    "database": {"inChart": {"image": STORES.name}},
    "redis": {"inChart": {"image": STORES.name}},
    "controlplane": {"settings": {"default_tenant": TENANT}},
}
ENGINE_ENVIRONMENT = {
    "PYTHONPATH": volumes.ENGINE_FOLDER,
    # vLLM and torch are compiled by the first process that imports them, and kept for the others.
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": volumes.BYTECODE_FOLDER,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",  # more threads than free cores cost more than they give
    "HF_HUB_OFFLINE": "1",
}


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

    def prepare(self) -> None:
        """Imports the images, and makes namespaces and volumes."""
        images = Images()
        self.node.import_image(images.system(STORES))
        for component in COMPONENTS:
            name = f"localhost/weir-{component}:{VERSION}"
            dockerfile = ROOT / "images" / f"{component}.Dockerfile"
            self.node.import_image(images.build(name, dockerfile=dockerfile, base=PYTHON))
        for name in (SYSTEM, SHOP):
            metadata = {"name": name, "labels": RESTRICTED}
            self.api.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        self._make_volumes()

    def install(self, values: Mapping[str, Any] | None = None) -> str:
        """Installs or upgrades the chart with the values of this cluster and the given ones."""
        return self.helm.install({**VALUES, **(values or {})}, folder=self.api.folder)

    def make_service(self, name: str = MODEL, *, replicas: int = 1) -> None:
        """Applies an LLMService with a tiny model on real vLLM; it is not awaited."""
        self.shop.apply(llm_service(name, replicas=replicas))

    def address(self, kubectl: Kubectl, service: str) -> str:
        """The base URL of a Service, reachable from this machine."""
        found = kubectl.get("service", service)
        if found is None:
            raise LookupError(f"there is no Service {service} in {kubectl.namespace}")
        return f"http://{found['spec']['clusterIP']}:{found['spec']['ports'][0]['port']}"

    @contextmanager
    def online(self, service: str = MODEL) -> Iterator[OpenAI]:
        """The unmodified client on a service's endpoint."""
        url = f"{self.address(self.shop, service)}/v1"
        with OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=60) as client:
            yield client

    @contextmanager
    def batches(self) -> Iterator[OpenAI]:
        """The unmodified client on the control plane, with a key of the shop's tenant."""
        base = self.address(self.system, f"{RELEASE}-controlplane")
        secret = self.system.get("secret", f"{RELEASE}-admin-key")
        if secret is None:
            raise LookupError(f"there is no Secret {RELEASE}-admin-key")
        admin = base64.b64decode(secret["data"]["key"]).decode()
        api = Api(ClientSettings.model_validate({"url": base, "api_key": admin}))
        try:
            key = api.create_key(KeyRequest(scope="tenant", tenant=TENANT)).key
        finally:
            api.close()
        with OpenAI(base_url=f"{base}/v1", api_key=key) as client:
            yield client

    def _make_volumes(self) -> None:
        folder = self.api.folder / "volumes"
        models = volumes.empty_folder(folder / "models")
        write_tiny_model(models / "tiny")
        reading = "ReadOnlyMany"
        packages = volumes.engine_packages()
        bytecode = CACHE / "bytecode"
        bytecode.mkdir(parents=True, exist_ok=True)
        bytecode.chmod(volumes.WRITABLE)
        self.api.kubectl.apply(
            volumes.volume("data", volumes.empty_folder(folder / "data"), modes=["ReadWriteOnce"]),
            volumes.volume(
                "files", volumes.empty_folder(folder / "files"), modes=["ReadWriteMany"]
            ),
            volumes.volume("engine", packages, modes=[reading], claim=(SHOP, "engine")),
            volumes.volume("bytecode", bytecode, modes=[WRITING], claim=(SHOP, "bytecode")),
            volumes.volume("models", models, modes=[reading], claim=(SHOP, "models")),
        )
        modes = {"engine": reading, "models": reading, "bytecode": WRITING}
        self.shop.apply(
            *(volumes.claim(name, mode=mode, volume_name=name) for name, mode in modes.items())
        )


def llm_service(name: str, *, replicas: int) -> dict[str, Any]:
    """An LLMService whose pods take vLLM from a volume: its own image would be 6 GB."""
    mounts = [
        {"name": "engine", "mountPath": volumes.ENGINE_FOLDER, "readOnly": True},
        {"name": "bytecode", "mountPath": volumes.BYTECODE_FOLDER},
    ]
    environment = [{"name": key, "value": value} for key, value in ENGINE_ENVIRONMENT.items()]
    agent = {"name": "agent", "env": environment, "volumeMounts": mounts}
    claims = [
        {"name": name, "persistentVolumeClaim": {"claimName": name}}
        for name in ("engine", "bytecode")
    ]
    pod = {"containers": [agent], "volumes": claims}
    arguments = (
        "--enforce-eager --dtype bfloat16 --num-gpu-blocks-override 256 --max-num-seqs 16 "
        "--max-num-batched-tokens 512"
    )
    return {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": "pvc://models/tiny"},
            "replicas": replicas,
            "engine": {"maxModelLen": 1024, "blockSize": 32, "args": arguments.split()},
            "resources": {
                "requests": {"cpu": "200m", "memory": "1Gi"},
                "limits": {"memory": "6Gi"},
            },
            "rollout": {"drainSeconds": 20},
            "podTemplate": {"spec": pod},
        },
    }


def batch_job(name: str, *, lines: int, service: str = MODEL) -> list[dict[str, Any]]:
    """A BatchJob and the ConfigMap with its lines; each asks for a few tokens."""
    content = "\n".join(
        json.dumps(
            {
                "custom_id": f"line-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": service,
                    "messages": [{"role": "user", "content": f"question {number}"}],
                    "max_tokens": 8,
                },
            }
        )
        for number in range(lines)
    )
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{name}-lines"},
            "data": {"lines.jsonl": content},
        },
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "BatchJob",
            "metadata": {"name": name},
            "spec": {
                "serviceRef": {"name": service},
                "input": {"configMapKeyRef": {"name": f"{name}-lines", "key": "lines.jsonl"}},
            },
        },
    ]
