"""What people and tools do to objects behind the operator's back, on a real API server."""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path

import pytest
import yaml

from e2e.cluster.api_server import ApiServer
from e2e.cluster.kubectl import Kubectl
from tests.operator.runtime.test_operator import (
    CHILDREN,
    METRIC,
    batchjob,
    condition,
    llmservice,
    missing,
    objects,
    uid,
)
from tests.support.operator_process import OperatorProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.kubernetes
ROOT = Path(__file__).resolve().parents[3]

SOON_S = 60
"""Far less than the time to the next full list."""


def test_orphans_are_taken_back_by_a_service_of_their_name(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    """As a Deployment takes back its ReplicaSets: what ran before runs on."""
    hpa = ("horizontalpodautoscaler", "chat")
    kubectl.apply(llmservice(autoscaling={"type": "HPA", "maxReplicas": 4, "metrics": [METRIC]}))
    assert eventually(lambda: not missing(kubectl, (*CHILDREN, hpa))), operator
    before = {kind: uid(kubectl, kind, "chat") for kind, _ in CHILDREN}
    kubectl.run("delete", "llmservice", "chat", "--cascade=orphan", "--timeout=60s")
    # Kubernetes deletes what its garbage collector had not yet seen as the service's.
    left = objects(kubectl, CHILDREN)
    assert {"deployment", "service"} <= left.keys()

    kubectl.apply(llmservice())
    configured = partial(condition, kubectl, "llmservice", "chat", "Configured")
    assert eventually(lambda: configured().get("reason") == "Applied", within_s=SOON_S), operator
    owner = uid(kubectl, "llmservice", "chat")
    assert eventually(lambda: not missing(kubectl)), operator
    for kind, _ in CHILDREN:
        found = kubectl.get(kind, "chat")
        assert found is not None
        assert kind not in left or found["metadata"]["uid"] == before[kind]
        assert [item["uid"] for item in found["metadata"]["ownerReferences"]] == [owner]
    assert eventually(lambda: kubectl.get(*hpa) is None), operator  # not asked for any more


@pytest.mark.parametrize("kind", ["llmservice", "batchjob"])
def test_a_status_that_somebody_wipes_is_soon_back(
    operator: OperatorProcess, kubectl: Kubectl, kind: str
) -> None:
    made, which = {
        "llmservice": (llmservice(), "Configured"),
        "batchjob": (batchjob("chat"), "Accepted"),
    }[kind]
    kubectl.apply(made)
    told = partial(condition, kubectl, kind, "chat", which)
    assert eventually(told), operator
    before = told()
    wipe = '[{"op": "remove", "path": "/status"}]'
    kubectl.run("patch", kind, "chat", "--subresource=status", "--type=json", "-p", wipe)
    assert eventually(told, within_s=SOON_S), operator
    assert told()["reason"] == before["reason"]


def test_a_budget_of_the_other_sort_is_put_right(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    """The API server takes one of the two fields only: ours alone was refused ever after."""
    kubectl.apply(llmservice())
    assert eventually(lambda: not missing(kubectl)), operator
    theirs = {"spec": {"minAvailable": 1, "maxUnavailable": None}}
    kubectl.run("patch", "pdb", "chat", "--type=merge", "-p", json.dumps(theirs))

    def budget() -> tuple[object, object]:
        spec = (kubectl.get("pdb", "chat") or {"spec": {}})["spec"]
        return spec.get("maxUnavailable"), spec.get("minAvailable")

    assert eventually(lambda: budget() == (1, None), within_s=SOON_S), (budget(), operator)
    configured = partial(condition, kubectl, "llmservice", "chat", "Configured")
    assert eventually(lambda: configured().get("reason") == "Applied"), (configured(), operator)


def test_an_edit_that_excludes_what_is_ours_is_told_of_with_its_remedy(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    kubectl.apply(llmservice())
    configured = partial(condition, kubectl, "llmservice", "chat", "Configured")
    assert eventually(lambda: configured().get("reason") == "Applied"), (configured(), operator)
    probe = {"httpGet": None, "exec": {"command": ["true"]}}
    containers = [{"name": "agent", "livenessProbe": probe}]
    edit = {"spec": {"template": {"spec": {"containers": containers}}}}
    kubectl.run("patch", "deployment", "chat", "-p", json.dumps(edit))
    refused = {"status": "False", "reason": "ChildRefused"}
    assert eventually(lambda: refused.items() <= configured().items(), within_s=SOON_S), operator
    assert "somebody has changed Deployment chat since" in configured()["message"]
    assert "delete it, and it is made anew" in configured()["message"]


def test_crds_older_than_the_operator_are_told_of_on_the_object_and_work_goes_on(
    operator: OperatorProcess, api_server: ApiServer, kubectl: Kubectl
) -> None:
    crd = yaml.safe_load((ROOT / "crds" / "weir.dev_llmservices.yaml").read_text())
    earlier = copy.deepcopy(crd)
    schema = earlier["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["selector"]
    del earlier["spec"]["versions"][0]["subresources"]["scale"]["labelSelectorPath"]
    apply = ("--server-side", "--force-conflicts")
    api_server.kubectl.apply(earlier, options=apply)
    told = partial(condition, kubectl, "llmservice", "chat", "Configured")
    selector = "--field-selector=reason=StatusRefused"
    try:
        kubectl.apply(llmservice())
        assert eventually(lambda: kubectl.list("events", selector), within_s=SOON_S), operator
        (event,) = kubectl.list("events", selector)
        assert event["involvedObject"]["name"] == "chat"
        assert "kubectl apply --server-side -f crds/" in event["message"]
        assert "selector" in event["message"]
        assert missing(kubectl) == []
        assert operator.metric("weir_operator_status_refused_total") > 0
    finally:
        api_server.kubectl.apply(crd, options=apply)
    assert eventually(told), operator
    assert len(kubectl.list("events", selector)) == 1
