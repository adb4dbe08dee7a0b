"""One operator as a process on a real API server: children, drift, status, deletion."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.api_server import ApiServer
from e2e.cluster.kubectl import Kubectl
from tests.support.operator_process import OperatorProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.kubernetes
ROOT = Path(__file__).resolve().parents[3]

CHILDREN = (
    ("serviceaccount", "chat"),
    ("service", "chat"),
    ("deployment", "chat"),
    ("poddisruptionbudget", "chat"),
    ("networkpolicy", "chat"),
)


METRIC = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
}


def llmservice(name: str = "chat", **spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "hf://org/model", "servedName": "m"}, **spec},
    }


def batchjob(name: str = "nightly", **spec: object) -> dict[str, Any]:
    given = {"inline": '{"custom_id": "1"}\n'}
    return {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "BatchJob",
        "metadata": {"name": name},
        "spec": {"serviceRef": {"name": "chat"}, "input": given, **spec},
    }


def missing(kubectl: Kubectl, children: tuple[tuple[str, str], ...] = CHILDREN) -> list[str]:
    there = objects(kubectl, children)
    return [kind for kind, _ in children if kind not in there]


def objects(kubectl: Kubectl, places: tuple[tuple[str, str], ...]) -> dict[str, dict[str, Any]]:
    """Those of these objects that are there, by kind in lower case, in one call."""
    asked = [f"{kind}/{name}" for kind, name in places]
    found = kubectl.run("get", *asked, "--ignore-not-found", "--output=json").stdout
    items = json.loads(found)["items"] if found.strip() else []
    return {str(item["kind"]).lower(): item for item in items}


def condition(kubectl: Kubectl, kind: str, name: str, which: str) -> dict[str, Any]:
    found = kubectl.get(kind, name) or {}
    conditions = found.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == which), {})


def test_children_live_with_their_service(operator: OperatorProcess, kubectl: Kubectl) -> None:
    kubectl.apply(llmservice())
    assert eventually(lambda: not missing(kubectl)), (missing(kubectl), operator)
    configured = ("llmservice", "chat", "Configured")
    assert eventually(lambda: condition(kubectl, *configured).get("status") == "True"), operator
    live = kubectl.get("llmservice", "chat")
    assert live is not None
    assert live["status"]["observedGeneration"] == live["metadata"]["generation"]


def test_applying_twice_writes_nothing(
    operator: OperatorProcess, api_server: ApiServer, kubectl: Kubectl, namespace: str
) -> None:
    objects = (llmservice(), batchjob())
    seen: list[str] = []

    def nothing_comes_of(options: Sequence[str]) -> bool:
        steady(api_server, operator, namespace)
        versions, before = resource_versions(kubectl), api_server.audit.position()
        kubectl.apply(*objects, options=options)
        steady(api_server, operator, namespace)
        written = api_server.audit.writes(since=before, namespace=namespace)
        asked = [call.verb for call in written if call.user_agent.startswith("kubectl/")]
        its = [call for call in written if is_its(call.user_agent, operator, call.resource)]
        seen[:] = [f"kubectl: {asked}", f"operator: {its}", f"{versions}"]
        # Server-side apply is always sent; that nothing came of it shows in the versions.
        return (
            set(asked) == ({"patch"} if options else set())
            and its == []
            and resource_versions(kubectl) == versions
        )

    for options in ((), ("--server-side", "--force-conflicts")):
        kubectl.apply(*objects, options=options)
        assert eventually(lambda: condition(kubectl, "llmservice", "chat", "Available")), operator
        assert eventually(lambda: condition(kubectl, "batchjob", "nightly", "Accepted")), operator
        # Late words of other controllers about the first one cost a write: then asked again.
        assert eventually(partial(nothing_comes_of, options)), (seen, operator)


def resource_versions(kubectl: Kubectl) -> list[str]:
    """Of the user's objects and of every child."""
    places = (("llmservice", "chat"), ("batchjob", "nightly"), *CHILDREN)
    found = objects(kubectl, places)
    return [str(found[kind]["metadata"]["resourceVersion"]) for kind, _ in places]


def uid(kubectl: Kubectl, kind: str, name: str) -> str | None:
    found = kubectl.get(kind, name)
    return None if found is None else str(found["metadata"]["uid"])


def is_another(kubectl: Kubectl, kind: str, name: str, before_uid: str | None) -> bool:
    return uid(kubectl, kind, name) not in (None, before_uid)


def is_its(user_agent: str, operator: OperatorProcess, resource: str) -> bool:
    """Whether a write is the operator's, its Lease apart."""
    return user_agent == operator.user_agent and resource != "leases"


def steady(api_server: ApiServer, operator: OperatorProcess, namespace: str) -> None:
    """Returns when the operator has written nothing for a second."""

    def quiet() -> bool:
        before = api_server.audit.position()
        time.sleep(1)
        written = api_server.audit.writes(since=before, namespace=namespace)
        return not [call for call in written if is_its(call.user_agent, operator, call.resource)]

    assert eventually(quiet), operator


EDITS: dict[str, dict[str, Any]] = {
    "serviceaccount": {"automountServiceAccountToken": True},
    "service": {"spec": {"selector": {"weir.dev/llmservice": "x"}}},
    "deployment": {"spec": {"progressDeadlineSeconds": 5}},
    "poddisruptionbudget": {"spec": {"maxUnavailable": 7}},
    "networkpolicy": {"spec": {"policyTypes": ["Ingress"]}},
    "horizontalpodautoscaler": {"spec": {"maxReplicas": 9}},
}


@pytest.mark.parametrize("kind", EDITS)
def test_any_child_edited_or_deleted_is_back_and_foreign_fields_stay(
    operator: OperatorProcess, kubectl: Kubectl, kind: str
) -> None:
    kubectl.apply(llmservice(autoscaling={"type": "HPA", "maxReplicas": 4, "metrics": [METRIC]}))
    assert eventually(lambda: kubectl.get(kind, "chat")), operator
    before = kubectl.get(kind, "chat")
    assert before is not None
    foreign = {"metadata": {"annotations": {"team": "search"}, "labels": {"theirs": "1"}}}
    kubectl.run("patch", kind, "chat", "--type=merge", "-p", json.dumps(EDITS[kind] | foreign))

    def back() -> bool:
        found = kubectl.get(kind, "chat") or {}
        return all(found.get(field) == before.get(field) for field in EDITS[kind])

    assert eventually(back), (kubectl.get(kind, "chat"), operator)
    found = kubectl.get(kind, "chat")
    assert found is not None
    assert found["metadata"]["annotations"]["team"] == "search"
    assert found["metadata"]["labels"]["theirs"] == "1"

    before_uid = uid(kubectl, kind, "chat")
    kubectl.run("delete", kind, "chat", "--wait=false")
    assert eventually(partial(is_another, kubectl, kind, "chat", before_uid)), operator


def test_edits_are_undone_and_additions_kept(operator: OperatorProcess, kubectl: Kubectl) -> None:
    kubectl.apply(llmservice())
    assert eventually(lambda: not missing(kubectl)), operator
    users = '{"metadata":{"annotations":{"team":"search"}},"spec":{"revisionHistoryLimit":3}}'
    kubectl.run("patch", "deployment", "chat", "--type=merge", "-p", users)
    kubectl.run("scale", "deployment", "chat", "--replicas=7")

    def replicas() -> int:
        return int((kubectl.get("deployment", "chat") or {"spec": {}})["spec"].get("replicas", -1))

    assert eventually(lambda: replicas() == 1), operator
    found = kubectl.get("deployment", "chat")
    assert found is not None
    assert found["metadata"]["annotations"]["team"] == "search"
    assert found["spec"]["revisionHistoryLimit"] == 3

    # Without its label it is not seen any more, and is ours all the same.
    kubectl.run("label", "service", "chat", "weir.dev/llmservice-")

    def label() -> object:
        found = kubectl.get("service", "chat") or {"metadata": {}}
        return (found["metadata"].get("labels") or {}).get("weir.dev/llmservice")

    assert eventually(lambda: label() == "chat"), operator

    # Scaling is by the service alone.
    kubectl.run("scale", "llmservice", "chat", "--replicas=3")
    assert eventually(lambda: replicas() == 3), operator


def test_a_pause_leaves_children_alone_and_a_refusal_is_said(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    kubectl.apply(llmservice())
    assert eventually(lambda: not missing(kubectl)), operator
    kubectl.run("annotate", "llmservice", "chat", "weir.dev/paused=true")
    configured = ("llmservice", "chat", "Configured")
    assert eventually(lambda: condition(kubectl, *configured).get("reason") == "Paused"), operator
    kubectl.run("delete", "service", "chat")
    time.sleep(1)
    assert missing(kubectl) == ["service"]
    kubectl.run("annotate", "llmservice", "chat", "weir.dev/paused-")
    assert eventually(lambda: not missing(kubectl)), operator

    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "taken"},
        "spec": {"ports": [{"port": 5432}]},
    }
    kubectl.apply(theirs)
    kubectl.apply(llmservice("taken"))
    refused = ("llmservice", "taken", "Configured")
    assert eventually(lambda: condition(kubectl, *refused).get("status") == "False"), operator
    assert "rename the LLMService" in condition(kubectl, *refused)["message"]
    found = kubectl.get("service", "taken")
    assert found is not None
    assert found["spec"]["ports"][0]["port"] == 5432


def test_what_is_refused_is_said_from_the_first_and_until_it_is_corrected(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    """Also when the spec changes elsewhere: nobody may take his policy for one that is there."""
    said: set[tuple[int, str]] = set()

    def allowing(cidr: str) -> dict[str, Any]:
        return llmservice(networkPolicy={"allowFrom": [{"ipBlock": {"cidr": cidr}}]})

    kubectl.apply(allowing("the office"))

    def generations() -> set[int]:
        found = condition(kubectl, "llmservice", "chat", "Configured")
        if found:
            said.add((found["observedGeneration"], found["reason"]))
        return {generation for generation, _ in said}

    assert eventually(lambda: 1 in generations()), operator
    kubectl.run("scale", "llmservice", "chat", "--replicas=3")
    assert eventually(lambda: 2 in generations()), operator
    time.sleep(1)
    generations()
    assert said == {(1, "ChildRefused"), (2, "ChildRefused")}
    events = kubectl.list("events", "--field-selector=reason=ChildRefused")
    assert len(events) == 1

    kubectl.apply(allowing("10.0.0.0/8"))
    assert eventually(lambda: 3 in generations()), operator
    assert (3, "Applied") in said


def test_a_job_that_an_earlier_crd_let_in_is_told_of(
    operator: OperatorProcess, api_server: ApiServer, kubectl: Kubectl
) -> None:
    """The API server takes the status of an object that it would not take any more itself."""
    crd = ROOT / "crds" / "weir.dev_batchjobs.yaml"
    earlier = yaml.safe_load(crd.read_text())
    schema = earlier["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["deadline"]["x-kubernetes-validations"]
    apply = ("--server-side", "--force-conflicts")
    api_server.kubectl.apply(earlier, options=apply)
    unreadable = batchjob(deadline="2030-01-01T00:00:00+99:99")
    try:
        assert eventually(lambda: kubectl.try_apply(unreadable).ok)
    finally:
        api_server.kubectl.apply(yaml.safe_load(crd.read_text()), options=apply)
    another = {**unreadable, "metadata": {"name": "another"}}
    assert eventually(lambda: not kubectl.try_apply(another, options=["--dry-run=server"]).ok)
    accepted = ("batchjob", "nightly", "Accepted")
    # Only what is written from here on is written by the rules of today.
    kubectl.run("patch", "batchjob", "nightly", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    generation = (kubectl.get("batchjob", "nightly") or {})["metadata"]["generation"]
    assert generation > 1
    assert eventually(
        lambda: condition(kubectl, *accepted).get("observedGeneration") == generation
    ), operator
    assert condition(kubectl, *accepted)["reason"] == "InvalidSpec"
    assert "spec.deadline" in condition(kubectl, *accepted)["message"]
    right = '{"spec":{"deadline":"2030-01-01T00:00:00Z"}}'
    kubectl.run("patch", "batchjob", "nightly", "--type=merge", "-p", right)
    assert eventually(lambda: condition(kubectl, *accepted)["reason"] != "InvalidSpec"), operator


def test_a_child_that_an_absent_webhook_holds_up_is_told_of_and_holds_up_no_other(
    operator: OperatorProcess, api_server: ApiServer, kubectl: Kubectl, namespace: str
) -> None:
    api_server.kubectl.apply(absent_webhook(namespace, "CREATE", "", "services"))
    configured = ("llmservice", "chat", "Configured")
    try:
        probe = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "probe"}}
        probe["spec"] = {"ports": [{"port": 80}]}
        options = ["--dry-run=server"]
        assert eventually(lambda: "webhook" in kubectl.try_apply(probe, options=options).stderr)
        kubectl.apply(llmservice())
        refused = partial(condition, kubectl, *configured)
        assert eventually(lambda: refused().get("reason") == "ChildRefused", within_s=60), operator
        assert "absent.example.org" in refused()["message"]
        assert missing(kubectl) == ["service"]
        assert condition(kubectl, "llmservice", "chat", "Ready")["status"] == "False"
    finally:
        kubectl.run("delete", "validatingwebhookconfiguration", namespace)
    assert eventually(lambda: refused().get("reason") == "Applied", within_s=60), operator
    assert missing(kubectl) == []


def absent_webhook(namespace: str, operation: str, group: str, resource: str) -> dict[str, Any]:
    """One that is asked of each such operation in a namespace, and never answers."""
    rule = {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": [operation],
        "resources": [resource],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [
            {
                "name": "absent.example.org",
                "clientConfig": {"url": "https://127.0.0.1:9/"},
                "rules": [rule],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


def test_a_child_that_an_absent_webhook_keeps_is_told_of_and_the_rest_goes_on(
    operator: OperatorProcess, api_server: ApiServer, kubectl: Kubectl, namespace: str
) -> None:
    hpa = ("horizontalpodautoscaler", "chat")
    kubectl.apply(llmservice(autoscaling={"type": "HPA", "maxReplicas": 4, "metrics": [METRIC]}))
    assert eventually(lambda: kubectl.get(*hpa)), operator
    api_server.kubectl.apply(
        absent_webhook(namespace, "DELETE", "autoscaling", "horizontalpodautoscalers")
    )
    configured = partial(condition, kubectl, "llmservice", "chat", "Configured")
    try:
        probe = ("delete", *hpa, "--dry-run=server")
        assert eventually(lambda: "webhook" in kubectl.try_run(*probe).stderr)
        kubectl.apply(llmservice(replicas=2))
        assert eventually(lambda: configured().get("reason") == "ChildRefused", within_s=60), (
            operator
        )
        told = configured()["message"]
        assert "HorizontalPodAutoscaler chat cannot be deleted" in told
        assert "absent.example.org" in told
        live = kubectl.get("llmservice", "chat")
        assert live is not None
        assert live["status"]["observedGeneration"] == live["metadata"]["generation"]
    finally:
        kubectl.run("delete", "validatingwebhookconfiguration", namespace)
    assert eventually(lambda: kubectl.get(*hpa) is None, within_s=60), operator
    assert eventually(lambda: configured().get("reason") == "Applied", within_s=60), operator


def test_deleting_a_service_deletes_its_children(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    kubectl.apply(llmservice())
    assert eventually(lambda: not missing(kubectl)), operator
    kubectl.run("delete", "llmservice", "chat", "--wait=true", "--timeout=110s")
    assert eventually(lambda: len(missing(kubectl)) == len(CHILDREN)), missing(kubectl)
