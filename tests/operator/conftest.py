"""A real Kubernetes API server for the operator's tests, and a namespace for each of them."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.binaries import Binaries
from e2e.cluster.kubectl import Kubectl

ROOT = Path(__file__).resolve().parents[2]
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """An API server with its controllers and our CRDs for the whole run.

    A test that stops or pauses one of its processes starts it again before it ends.
    """
    folder = Path(tempfile.mkdtemp(prefix="weir-test-kubernetes-"))
    server = ApiServer(folder, Binaries())
    try:
        server.start()
        server.apply_crds(ROOT / "crds")
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def namespace(api_server: ApiServer) -> Iterator[str]:
    """A namespace of this test's own, where restricted pod security is enforced."""
    name = f"test-{secrets.token_hex(4)}"
    metadata = {"name": name, "labels": RESTRICTED}
    api_server.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    yield name
    api_server.kubectl.run("delete", "namespace", name, "--wait=false")


@pytest.fixture
def kubectl(api_server: ApiServer, namespace: str) -> Kubectl:
    """kubectl as an administrator, in the test's namespace unless a call names another."""
    return api_server.kubectl.inside(namespace)
