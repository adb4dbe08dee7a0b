"""What becomes of a release: upgraded with another CRD and value, and taken away."""

from __future__ import annotations

import json
from typing import Any

from e2e.support.jobs import until_complete
from e2e.support.manifests import batch_job
from e2e.support.platform import RELEASE, Platform
from e2e.support.waiting import until, until_condition

EXCEPT_OF_HELM_TEST = "app.kubernetes.io/component!=test"
"""Helm leaves the pods of `helm test` to their users."""
KINDS = ("llmservices", "batchjobs")


def data_secrets(platform: Platform) -> dict[str, Any]:
    """The generated Secrets that hold data."""
    names = (f"{RELEASE}-admin-key", f"{RELEASE}-database")
    return {name: (platform.system.get("secret", name) or {}).get("data") for name in names}


def test_an_upgrade_brings_crds_and_values(service: Platform, key: str) -> None:
    """The cluster has the CRD of another release, and the chart brings its own again."""
    secrets = data_secrets(service)
    pods = {pod["metadata"]["uid"] for pod in service.replicas()}
    other = [{"op": "replace", "path": "/spec/names/shortNames", "value": ["other"]}]
    crd = "batchjobs.weir.dev"
    service.api.kubectl.run("patch", "crd", crd, "--type=json", "--patch", json.dumps(other))
    with service.traffic().running() as traffic:
        service.install({"operator": {"logLevel": "debug"}})
        service.shop.apply(*batch_job("after-upgrade", lines=10))
        until_complete(service.shop, "after-upgrade")
    assert (traffic.failures, traffic.answers > 0) == ([], True)
    found = service.api.kubectl.get("crd", crd) or {}
    assert found["spec"]["names"]["shortNames"] == ["bj"]
    operator = json.dumps(service.system.get("deployment", f"{RELEASE}-operator"))
    assert '"value": "debug"' in operator
    assert data_secrets(service) == secrets
    assert {pod["metadata"]["uid"] for pod in service.replicas()} == pods
    with service.batches(key) as client:
        assert client.batches.list(limit=1).data


def test_an_uninstall_leaves_no_finalizer_and_keeps_data(service: Platform, key: str) -> None:
    service.shop.apply(*batch_job("unfinished", lines=10, suspend=True))
    until_condition(service.shop, "batchjob", "unfinished", "Suspended")
    secrets = data_secrets(service)
    with service.batches(key) as client:
        batches = [batch.id for batch in client.batches.list(limit=5).data]
    with service.traffic().running() as traffic:
        service.helm.uninstall()
    assert (traffic.failures, traffic.answers > 0) == ([], True)
    assert finalizers(service) == []
    until(
        lambda: service.system.list("pods", f"--selector={EXCEPT_OF_HELM_TEST}") == [],
        "no pod is left",
    )
    assert data_secrets(service) == secrets
    service.shop.run("delete", "batchjob", "unfinished", "--timeout=110s")

    service.install()  # finds what was kept
    with service.batches(key) as client:
        assert [batch.id for batch in client.batches.list(limit=5).data] == batches
    # What a status says could be of before: that the pods are served again a batch shows.
    service.shop.apply(*batch_job("after-return", lines=10))
    until_complete(service.shop, "after-return")


def test_an_uninstall_takes_data_and_crds_when_asked(service: Platform) -> None:
    service.install({"uninstall": {"deleteData": True, "deleteCRDs": True}})
    service.helm.uninstall()
    assert set(data_secrets(service).values()) == {None}
    until(
        lambda: service.system.list("persistentvolumeclaims") == [],
        "the claims are gone",
    )
    crds = {item["metadata"]["name"] for item in service.api.kubectl.list("crds")}
    assert not {f"{kind}.weir.dev" for kind in KINDS} & crds
    until(lambda: service.shop.list("deployments") == [], "nothing serves")


def finalizers(platform: Platform) -> list[str]:
    """Every finalizer of ours that is left on any object of ours."""
    return [
        name
        for kind in KINDS
        for item in platform.api.kubectl.list(kind, "--all-namespaces")
        for name in item["metadata"].get("finalizers", ())
        if name.startswith("weir.dev/")
    ]
