"""Upgrades on a real API server: what a release that runs cannot become, and what it restarts."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from e2e.cluster.api_server import ApiServer
from e2e.cluster.kubectl import Kubectl
from tests.chart.chart import CHART, EXTERNAL, Helm, HelmError, Manifest, named
from tests.chart.test_cluster import data_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.kubernetes
COMPONENT = "app.kubernetes.io/component"


def test_a_database_never_gets_a_password_that_is_not_its_own(
    cluster_helm: Helm, api_server: ApiServer, namespace: str
) -> None:
    """The Secret is lost: the control plane was locked out, at its next restart, for good."""
    kubectl = api_server.kubectl.inside(namespace)
    place = ("--namespace", namespace, "--no-hooks")
    apart = {"rbac": {"aggregateRoles": False}, "fullnameOverride": namespace}
    name, claim = f"{namespace}-database", f"data-{namespace}-postgresql-0"
    cluster_helm.run("install", "apart", CHART, *place, values=apart)
    try:
        assert eventually(lambda: kubectl.get("persistentvolumeclaim", claim))
        before = data_of(kubectl)
        kubectl.run("delete", "secret", name)
        with pytest.raises(HelmError, match=f"Secret {name} has no password") as refused:
            cluster_helm.run("upgrade", "apart", CHART, *place, values=apart)
        assert claim in str(refused.value)

        manifest = cluster_helm.run("get", "manifest", "apart", "--namespace", namespace)
        kept = named([item for item in yaml.safe_load_all(manifest) if item], "Secret", name)
        kubectl.apply(kept)
        cluster_helm.run("upgrade", "apart", CHART, *place, values=apart)
        assert data_of(kubectl) == before
    finally:
        cluster_helm.run("uninstall", "apart", *place)


def revisions(kubectl: Kubectl) -> dict[str, Any]:
    """What the pods of each Deployment are made from."""
    found = kubectl.list("deployments")
    return {item["metadata"]["labels"][COMPONENT]: item["spec"]["template"] for item in found}


def test_a_redis_with_a_new_password_restarts_with_its_clients(
    cluster_helm: Helm, api_server: ApiServer, namespace: str
) -> None:
    """They went on with the old one; whichever started again first was shut out by the other."""
    kubectl = api_server.kubectl.inside(namespace)
    place = ("--namespace", namespace, "--no-hooks")
    apart = {"rbac": {"aggregateRoles": False}, "fullnameOverride": namespace}
    cluster_helm.run("install", "apart", CHART, *place, values=apart)
    try:
        before, key = revisions(kubectl), data_of(kubectl)[f"{namespace}-redis"]
        cluster_helm.run("upgrade", "apart", CHART, *place, values=apart)
        assert revisions(kubectl) == before
        kubectl.run("delete", "secret", f"{namespace}-redis")
        cluster_helm.run("upgrade", "apart", CHART, *place, values=apart)
        assert data_of(kubectl)[f"{namespace}-redis"] != key
        after = revisions(kubectl)
        changed = {name for name, template in after.items() if template != before[name]}
        assert changed == {"controlplane", "redis"}
        cluster_helm.run("upgrade", "apart", CHART, *place, "--reuse-values")
        assert revisions(kubectl) == after
        kept = cluster_helm.run("get", "values", "apart", "--all", "--namespace", namespace)
        assert "password" not in yaml.safe_load(kept)["redis"]
    finally:
        cluster_helm.run("uninstall", "apart", *place)


def test_a_volume_that_cannot_become_another_is_refused_by_its_value(
    cluster_helm: Helm, api_server: ApiServer, namespace: str
) -> None:
    """The API server refused half of an upgrade: a claim's, or a StatefulSet's, spec is fixed."""
    place = ("--namespace", namespace, "--no-hooks")
    apart = {"rbac": {"aggregateRoles": False}, "fullnameOverride": namespace}
    files = {"size": "2Gi", "storageClassName": "slow"}

    def given(volume: Manifest, storage: Manifest) -> Manifest:
        database = {"inChart": {"storage": storage}}
        return {**apart, "files": {"volume": {**files, **volume}}, "database": database}

    def refused(volume: Manifest, storage: Manifest) -> str:
        with pytest.raises(HelmError) as error:
            cluster_helm.run("upgrade", "apart", CHART, *place, values=given(volume, storage))
        return str(error.value)

    cluster_helm.run("install", "apart", CHART, *place, values=given({}, {}))
    try:
        cluster_helm.run("upgrade", "apart", CHART, *place, values=given({"size": "2048Mi"}, {}))
        assert "files.volume.size: 1500M, and" in refused({"size": "1500M"}, {})
        another = refused({"accessMode": "ReadWriteMany"}, {})
        assert "files.volume.accessMode: ReadWriteMany, and" in another
        assert "files.volume.existingClaim" in another
        assert "files.volume.storageClassName: fast," in refused({"storageClassName": "fast"}, {})
        assert "storage.storageClassName: fast, and" in refused({}, {"storageClassName": "fast"})
        larger = {"size": "3Gi"}
        told = refused({}, larger)
        assert "database.inChart.storage.size: 3Gi, and" in told

        kubectl = api_server.kubectl.inside(namespace)
        remedy = (
            f"kubectl -n {namespace} delete statefulset {namespace}-postgresql --cascade=orphan"
        )
        assert remedy in told
        kubectl.run(*remedy.split()[3:])
        cluster_helm.run("upgrade", "apart", CHART, *place, values=given({}, larger))
    finally:
        cluster_helm.run("uninstall", "apart", *place)


def at_address(namespace: str, address: str, *, replicas: int = 3) -> Manifest:
    """Values of a release whose Service has this address; replicas tell whether one was written."""
    return {
        "rbac": {"aggregateRoles": False},
        "fullnameOverride": namespace,
        "controlplane": {"replicas": replicas, "service": {"clusterIP": address}},
    }


def address_of(kubectl: Kubectl, service: str) -> str:
    found = kubectl.get("service", service)
    assert found is not None
    return str(found["spec"]["clusterIP"])


def free_address(kubectl: Kubectl) -> str:
    """One that a Service had before."""
    kubectl.run("create", "service", "clusterip", "spare", "--tcp=80")
    address = address_of(kubectl, "spare")
    kubectl.run("delete", "service", "spare")
    return address


def test_an_address_that_a_service_cannot_take_is_refused_by_its_value(
    cluster_helm: Helm, api_server: ApiServer, namespace: str
) -> None:
    """The API server refused it half-way, with a part of the upgrade written."""
    kubectl = api_server.kubectl.inside(namespace)
    place = ("--namespace", namespace, "--no-hooks")
    name, another = f"{namespace}-controlplane", free_address(kubectl)
    first = at_address(namespace, "", replicas=1)
    cluster_helm.run("install", "apart", CHART, *place, values=first)
    try:
        address = address_of(kubectl, name)
        wish = at_address(namespace, another)
        with pytest.raises(HelmError) as refused:
            cluster_helm.run("upgrade", "apart", CHART, *place, values=wish)
        told = str(refused.value)
        assert f"service.clusterIP: {another}, and Service {name} has {address}, which" in told
        deployment = kubectl.get("deployment", name)
        assert deployment is not None
        assert deployment["spec"]["replicas"] == 1
        for same in (address, ""):
            cluster_helm.run("upgrade", "apart", CHART, *place, values=at_address(namespace, same))
            assert address_of(kubectl, name) == address

        remedy = f"kubectl -n {namespace} delete service {name}"
        assert remedy in told
        kubectl.run(*remedy.split()[3:])
        cluster_helm.run("upgrade", "apart", CHART, *place, values=wish)
        assert address_of(kubectl, name) == another
    finally:
        cluster_helm.run("uninstall", "apart", *place)


def test_a_service_without_an_address_takes_none(
    cluster_helm: Helm, api_server: ApiServer, namespace: str
) -> None:
    """Somebody made it headless; the value cannot say so, and need not."""
    kubectl = api_server.kubectl.inside(namespace)
    place = ("--namespace", namespace, "--no-hooks")
    name, another = f"{namespace}-controlplane", free_address(kubectl)
    cluster_helm.run("install", "apart", CHART, *place, values=at_address(namespace, ""))
    try:
        found = kubectl.get("service", name)
        assert found is not None
        kubectl.run("delete", "service", name)
        kept = {key: found["metadata"][key] for key in ("name", "labels", "annotations")}
        spec = {**found["spec"], "clusterIP": "None", "clusterIPs": ["None"]}
        headless = {"apiVersion": "v1", "kind": "Service", "metadata": kept, "spec": spec}
        kubectl.apply(headless, options=("--server-side",))
        wish = at_address(namespace, another)
        with pytest.raises(HelmError, match=f"{name} has None, which .* leave it empty, or"):
            cluster_helm.run("upgrade", "apart", CHART, *place, values=wish)
        cluster_helm.run("upgrade", "apart", CHART, *place, values=at_address(namespace, ""))
        assert address_of(kubectl, name) == "None"
    finally:
        cluster_helm.run("uninstall", "apart", *place)


@pytest.mark.parametrize(
    ("outside", "names"),
    [
        ({"database": EXTERNAL["database"]}, "database.existingSecret: StatefulSet"),
        ({"files": EXTERNAL["files"]}, "files.url: the files' volume"),
    ],
)
def test_an_upgrade_to_stores_of_ones_own_deletes_no_data(
    cluster_helm: Helm, api_server: ApiServer, namespace: str, outside: Manifest, names: str
) -> None:
    """Nobody uninstalled anything, and the volumes went before they could be copied."""
    place = ("--namespace", namespace, "--no-hooks")
    apart = {"rbac": {"aggregateRoles": False}, "fullnameOverride": namespace}
    kubectl = api_server.kubectl.inside(namespace)
    claims = {f"data-{namespace}-postgresql-0", f"{namespace}-files"}

    def live() -> set[str]:
        return {item["metadata"]["name"] for item in kubectl.list("persistentvolumeclaims")}

    def unowned() -> bool:
        found = kubectl.list("persistentvolumeclaims")
        return not any(item["metadata"].get("ownerReferences") for item in found)

    tidy = {**apart, "uninstall": {"deleteData": True}}
    cluster_helm.run("install", "apart", CHART, *place, values=tidy)
    try:
        assert eventually(lambda: live() == claims)
        with pytest.raises(HelmError, match=names) as refused:
            cluster_helm.run("upgrade", "apart", CHART, *place, values={**tidy, **outside})
        assert "uninstall.deleteData=false" in str(refused.value)
        cluster_helm.run("upgrade", "apart", CHART, *place, values=apart)
        assert eventually(unowned)
        cluster_helm.run("upgrade", "apart", CHART, *place, values={**apart, **outside})
        assert live() == claims
    finally:
        cluster_helm.run("uninstall", "apart", *place)
