"""The API server that the operator's tests stand on: real, and nothing of it is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.audit import Call
from e2e.cluster.binaries import Binaries
from e2e.cluster.kubectl import Kubectl, KubectlError
from tests.support.waiting import eventually

pytestmark = pytest.mark.kubernetes


def config_map(name: str, value: str = "1") -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"key": value},
    }


def pod(**security: object) -> dict[str, object]:
    container = {"name": "main", "image": "example.org/none", "securityContext": security}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod"},
        "spec": {"containers": [container]},
    }


def test_objects_are_kept_and_read_back(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("settings"))
    found = kubectl.get("configmap", "settings")
    assert found is not None
    assert found["data"] == {"key": "1"}
    assert kubectl.get("configmap", "another") is None


def test_the_audit_log_says_who_wrote_what(
    api_server: ApiServer, kubectl: Kubectl, namespace: str
) -> None:
    before = api_server.audit.position()
    kubectl.apply(config_map("first"))
    kubectl.run("get", "configmap", "first")
    impersonated = ("--as=system:serviceaccount:a:b", "--as-group=system:masters")
    kubectl.run("create", "configmap", "second", *impersonated)
    log: list[Call] = []

    def complete() -> bool:
        written = api_server.audit.writes(since=before, namespace=namespace, resource="configmaps")
        # A controller puts the cluster's certificate into each new namespace, sooner or later.
        log[:] = [call for call in written if call.name in {"first", "second"}]
        return len(log) == 2

    assert eventually(complete), log
    assert [(call.verb, call.name, call.acting_user) for call in log] == [
        ("create", "first", "admin"),
        ("create", "second", "system:serviceaccount:a:b"),
    ]
    assert all(call.user_agent.startswith("kubectl/") for call in log)


def test_pods_must_be_restricted(kubectl: Kubectl) -> None:
    refused = kubectl.try_apply(pod(privileged=True))
    assert not refused.ok
    assert "restricted" in refused.stderr
    kubectl.apply(
        pod(
            allowPrivilegeEscalation=False,
            runAsNonRoot=True,
            capabilities={"drop": ["ALL"]},
            seccompProfile={"type": "RuntimeDefault"},
        ),
        options=["--dry-run=server"],
    )


def test_controllers_collect_the_objects_of_an_owner(kubectl: Kubectl) -> None:
    kubectl.apply(config_map("owner"))
    owner = kubectl.get("configmap", "owner")
    assert owner is not None
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
    }
    child = config_map("child")
    child["metadata"] = {"name": "child", "ownerReferences": [reference]}
    kubectl.apply(child)
    kubectl.run("delete", "configmap", "owner")
    assert eventually(lambda: kubectl.get("configmap", "child") is None)


def test_a_namespace_goes_with_everything_in_it(api_server: ApiServer, namespace: str) -> None:
    name = f"{namespace}-more"
    api_server.kubectl.run("create", "namespace", name)
    api_server.kubectl.inside(name).apply(config_map("settings"))
    api_server.kubectl.run("delete", "namespace", name, "--wait=false")
    assert eventually(lambda: api_server.kubectl.get("namespace", name) is None)


def test_a_service_account_reaches_the_server_as_itself(
    api_server: ApiServer, kubectl: Kubectl, namespace: str
) -> None:
    kubectl.run("create", "serviceaccount", "reader")
    kubectl.run("create", "role", "reader", "--verb=get,list", "--resource=configmaps")
    kubectl.run(
        "create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:reader"
    )
    kubeconfig = api_server.service_account_kubeconfig(namespace, "reader")
    reader = Kubectl(binary=kubectl.binary, kubeconfig=kubeconfig, namespace=namespace)
    assert reader.try_run("get", "configmaps").ok
    with pytest.raises(KubectlError, match="cannot create resource"):
        reader.run("create", "configmap", "mine")


def test_a_server_can_hang_die_and_come_back(tmp_path: Path) -> None:
    """A server of its own, without controllers: the other tests' goes on."""
    server = ApiServer(tmp_path, Binaries())
    try:
        for component in (server.etcd, server.server):
            component.start()
            component.wait_ready()
        server.kubectl.inside("default").apply(config_map("kept"))
        server.server.pause()
        assert not server.ready()
        server.server.resume()
        assert eventually(server.ready)
        server.server.kill()
        assert not server.ready()
        server.server.start()
        server.server.wait_ready()
        assert server.kubectl.inside("default").get("configmap", "kept") is not None
    finally:
        server.close()
    assert list(tmp_path.glob("*.pid")) == []
