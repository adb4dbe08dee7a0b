"""The chart on a real API server: what it takes, who may do what, upgrades, the hooks' commands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio.client import CustomObjectsApi

from e2e.cluster.api_server import ApiServer
from e2e.cluster.audit import Call
from e2e.cluster.kubectl import Kubectl
from tests.chart import rbac_table
from tests.chart.chart import CHART, ROOT, Helm, Manifest, named, of_kind, pods, rules
from tests.operator.runtime.test_operator import METRIC, batchjob, condition, llmservice
from tests.support.operator_process import PATIENT_LEASE, OperatorProcess
from tests.support.waiting import eventually
from weir_operator.cluster.errors import HTTP_FORBIDDEN
from weir_operator.crds.__main__ import main as crds_command
from weir_operator.planning.kinds import FINALIZER

pytestmark = pytest.mark.kubernetes
FORBIDDEN = (
    ("core", "secrets", "get"),
    ("core", "secrets", "list"),
    ("core", "configmaps", "list"),
    ("core", "pods", "create"),
    ("core", "pods/exec", "create"),
    ("core", "nodes", "list"),
    ("core", "serviceaccounts/token", "create"),
    ("weir.dev", "llmservices", "delete"),
    ("rbac.authorization.k8s.io", "clusterroles", "create"),
    ("rbac.authorization.k8s.io", "clusterrolebindings", "create"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "delete"),
)
"""Rights that nobody of ours may have, asked for besides every right in the table."""


def test_the_table_of_rights_is_the_charts(rendered: Mapping[str, list[Manifest]]) -> None:
    """The table is what was reviewed; ``uninstall.deleteCRDs`` adds a right that it names."""
    assert set(rbac_table.read()) == rules(rendered["everything"])
    extra = rules(rendered["everything"]) - rules(rendered["default"])
    assert [(row.account, row.verbs) for row in extra] == [("weir-uninstall", ("get", "delete"))]


def test_the_api_server_takes_every_object(
    rendered: Mapping[str, list[Manifest]], kubectl: Kubectl, namespace: str
) -> None:
    """Pods of templates too, under restricted pod security."""
    for values in ("default", "external"):
        objects: list[Manifest] = json.loads(json.dumps(rendered[values]))
        for number, (_, pod) in enumerate(list(pods(objects))):
            claimed = {"name": "data", "emptyDir": {}}  # what a StatefulSet adds to its pods
            if all(volume["name"] != "data" for volume in pod["spec"]["volumes"]):
                pod["spec"]["volumes"].append(claimed)
            objects.append(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": f"pod-{number}"},
                    "spec": {**pod["spec"], "serviceAccountName": "default"},
                }
            )
        for item in objects:
            if "namespace" in item["metadata"]:
                item["metadata"]["namespace"] = namespace
        options = ("--dry-run=server", "--validate=strict")
        result = kubectl.try_apply(*objects, options=options)
        assert result.ok, result.stderr
        assert "would violate" not in result.stderr


@pytest.fixture(scope="module")
def installed(
    helm: Helm, api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Helm, str]]:
    """The release without its hooks (no node runs them), in a namespace of its own."""
    folder = tmp_path_factory.mktemp("installed")
    cluster = Helm(binary=helm.binary, folder=folder, kubeconfig=api_server.kubeconfig)
    place = ("--namespace", "chart-test")
    cluster.run("install", "weir", CHART, *place, "--create-namespace", "--no-hooks")
    yield cluster, "chart-test"
    if "weir" in cluster.run("list", "--short", *place):
        cluster.run("uninstall", "weir", *place, "--no-hooks")
    api_server.kubectl.run("delete", "namespace", "chart-test", "--wait=false")


def review(account: str, namespace: str, right: tuple[str, str, str], name: str) -> Manifest:
    group, resource, verb = right
    resource, _, subresource = resource.partition("/")
    attributes: dict[str, str] = {
        "group": "" if group == "core" else group,
        "resource": resource,
        "verb": verb,
        "namespace": namespace,
        "name": name,
        **({"subresource": subresource} if subresource else {}),
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:chart-test:{account}",
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": attributes,
        },
    }


def rights(rows: Sequence[rbac_table.Row]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for row in rows
        for group in row.groups
        for resource in row.resources
        for verb in row.verbs
    }


@pytest.mark.parametrize("account", ["weir-operator", "weir-controlplane"])
def test_a_service_account_may_do_what_the_table_says_and_no_more(
    installed: tuple[Helm, str], api_server: ApiServer, account: str
) -> None:
    _, namespace = installed
    table = rbac_table.read()
    own = [row for row in table if row.account == account]
    asked = sorted(rights(table) | set(FORBIDDEN))
    questions, expected = [], []
    for place in (namespace, "elsewhere"):
        reach = [row for row in own if row.scope == "cluster" or place == namespace]
        for right in asked:
            granted = [row for row in reach if right in rights([row])]
            named_only = bool(granted) and all(row.names for row in granted)
            questions.append(review(account, place, right, account if named_only else ""))
            expected.append((right, place, bool(granted)))
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": questions})
    answers = api_server.kubectl.run(
        "create", "-f", "-", "--output=json", "--validate=false", stdin=text
    )
    decoder, position = json.JSONDecoder(), 0
    found: list[Manifest] = []
    while position < len(answers.stdout.rstrip()):
        item, position = decoder.raw_decode(answers.stdout, position)
        found += item["items"] if item["kind"] == "List" else [item]
        while answers.stdout[position : position + 1].isspace():
            position += 1
    allowed = [item["status"].get("allowed", False) for item in found]
    assert len(allowed) == len(expected)
    wrong = [e for e, is_allowed in zip(expected, allowed, strict=True) if e[2] != is_allowed]
    assert wrong == []


def test_people_get_their_rights_by_the_clusters_own_roles(
    installed: tuple[Helm, str], api_server: ApiServer
) -> None:
    kubectl = api_server.kubectl.inside(installed[1])
    for role, user in (("view", "viewer"), ("edit", "editor")):
        kubectl.run("create", "rolebinding", role, f"--clusterrole={role}", f"--user={user}")

    def may(user: str, verb: str, resource: str, *options: str) -> bool:
        what = (verb, f"{resource}.weir.dev", *options)
        return kubectl.try_run("auth", "can-i", *what, f"--as={user}").ok

    scale, status = "--subresource=scale", "--subresource=status"
    for kind in ("llmservices", "batchjobs"):
        assert eventually(partial(may, "viewer", "watch", kind)), kind
        assert eventually(partial(may, "editor", "create", kind)), kind
        assert may("editor", "watch", kind)
        assert not may("viewer", "create", kind)
        assert not may("editor", "patch", kind, status)
    assert may("editor", "patch", "llmservices", scale)
    assert not may("viewer", "patch", "llmservices", scale)


def data_of(kubectl: Kubectl) -> dict[str, Any]:
    return {
        item["metadata"]["name"]: item["data"]
        for item in kubectl.list("secrets")
        if not item["metadata"]["name"].startswith("sh.helm")
    }


def test_an_upgrade_keeps_secrets_and_an_uninstall_keeps_data(
    installed: tuple[Helm, str], api_server: ApiServer
) -> None:
    helm, namespace = installed
    kubectl = api_server.kubectl.inside(namespace)
    before = data_of(kubectl)
    assert set(before) == {"weir-admin-key", "weir-database", "weir-redis"}
    place = ("--namespace", namespace, "--no-hooks")
    helm.run("upgrade", "weir", CHART, *place, values={"controlplane": {"replicas": 3}})
    deployment = kubectl.get("deployment", "weir-controlplane")
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 3
    assert data_of(kubectl) == before

    helm.run("uninstall", "weir", *place)
    left = data_of(kubectl)
    assert left == before
    assert kubectl.get("persistentvolumeclaim", "weir-files") is not None

    helm.run("install", "weir", CHART, *place)
    assert data_of(kubectl) == left

    # A Redis of one's own, by the Secret that is there already.
    own = {"stringData": {"url": "redis://:secret@redis.example.com:6379/0"}}
    kubectl.run("patch", "secret", "weir-redis", f"--patch={json.dumps(own)}")
    helm.run("upgrade", "weir", CHART, *place, "--set", "redis.existingSecret=weir-redis")
    assert data_of(kubectl)["weir-redis"]["url"] != left["weir-redis"]["url"]


def hook_account(
    rendered: Sequence[Manifest], account: str, namespace: str, api_server: ApiServer
) -> Path:
    """A kubeconfig of a hook Job's ServiceAccount, with the roles that the chart gives it."""
    text = json.dumps(
        [
            item
            for item in of_kind(
                rendered,
                "ServiceAccount",
                "Role",
                "RoleBinding",
                "ClusterRole",
                "ClusterRoleBinding",
            )
            if item["metadata"]["name"] == account
        ]
    )
    objects = json.loads(text.replace('"weir-system"', json.dumps(namespace)))
    for item in objects:
        if item["kind"].startswith("Cluster"):  # two tests, two accounts, no meeting
            item["metadata"]["name"] += f"-{namespace}"
        if item["kind"] == "ClusterRoleBinding":
            item["roleRef"]["name"] += f"-{namespace}"
    api_server.kubectl.inside(namespace).apply(*objects)
    return api_server.service_account_kubeconfig(namespace, account)


def run_crds(*words: str, kubeconfig: Path) -> None:
    """Runs a hook Job's command as its account; fails when it fails."""
    assert crds_command(["--kubeconfig", str(kubeconfig), *words]) == 0


def crd(kubectl: Kubectl) -> dict[str, Any]:
    found = kubectl.get("customresourcedefinition", "batchjobs.weir.dev")
    assert found is not None
    return found


def test_the_crd_hook_applies_what_the_repository_has_and_corrects_it(
    rendered: Mapping[str, list[Manifest]], api_server: ApiServer, namespace: str
) -> None:
    kubeconfig = hook_account(rendered["default"], "weir-crds", namespace, api_server)
    kubectl = api_server.kubectl
    run_crds("apply", kubeconfig=kubeconfig)
    first = crd(kubectl)
    wanted = yaml.safe_load((ROOT / "crds" / "weir.dev_batchjobs.yaml").read_text())
    (version,) = first["spec"]["versions"]
    assert version["schema"] == wanted["spec"]["versions"][0]["schema"]
    run_crds("apply", kubeconfig=kubeconfig)
    assert crd(kubectl)["metadata"]["generation"] == first["metadata"]["generation"]

    change = [{"op": "replace", "path": "/spec/names/shortNames", "value": ["other"]}]
    name = "batchjobs.weir.dev"
    kubectl.run("patch", "crd", name, "--type=json", "--patch", json.dumps(change))
    run_crds("apply", kubeconfig=kubeconfig)
    assert crd(kubectl)["spec"]["names"]["shortNames"] == ["bj"]


def test_the_uninstall_hook_stops_the_operator_and_leaves_no_finalizer_of_ours(
    rendered: Mapping[str, list[Manifest]], api_server: ApiServer, kubectl: Kubectl, namespace: str
) -> None:
    kubeconfig = hook_account(rendered["default"], "weir-uninstall", namespace, api_server)
    operator = json.loads(json.dumps(named(rendered["default"], "Deployment", "weir-operator")))
    # Accepted pods would wait for a node for ever, and end at once when they are deleted.
    kubectl.apply(
        operator,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "weir-operator"}},
    )
    job = {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "BatchJob",
        "metadata": {"name": "night", "finalizers": [FINALIZER, "example.com/other"]},
        "spec": {"serviceRef": {"name": "llama"}, "input": {"inline": "{}"}},
    }
    # One of the operator's that a node evicted: it stays until its ReplicaSet goes.
    template = operator["spec"]["template"]
    evicted = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "evicted", "labels": template["metadata"]["labels"]},
        "spec": template["spec"],
    }
    kubectl.apply(job, evicted)
    ended = json.dumps({"status": {"phase": "Failed", "reason": "Evicted"}})
    kubectl.run("patch", "pod", "evicted", "--subresource=status", "--type=merge", "--patch", ended)
    words = ("release", "--namespace", namespace, "--deployment", "weir-operator")
    run_crds(*words, kubeconfig=kubeconfig)
    stopped = kubectl.get("deployment", "weir-operator")
    found = kubectl.get("batchjob", "night")
    assert stopped is not None
    assert found is not None
    assert stopped["spec"]["replicas"] == 0
    assert [pod["metadata"]["name"] for pod in kubectl.list("pods")] == ["evicted"]
    assert found["metadata"]["finalizers"] == ["example.com/other"]
    patch = json.dumps({"metadata": {"finalizers": []}})
    kubectl.run("patch", "batchjob", "night", "--type=merge", "--patch", patch)
    kubectl.run("delete", "deployment", "weir-operator")
    run_crds(*words, kubeconfig=kubeconfig)  # an operator that is gone is stopped


def test_the_uninstall_hook_bears_a_batch_job_that_somebody_changes_meanwhile(
    rendered: Mapping[str, list[Manifest]],
    api_server: ApiServer,
    kubectl: Kubectl,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It reads it again, with the rights that it has."""
    kubeconfig = hook_account(rendered["default"], "weir-uninstall", namespace, api_server)
    job = {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "BatchJob",
        "metadata": {"name": "night", "finalizers": [FINALIZER]},
        "spec": {"serviceRef": {"name": "llama"}, "input": {"inline": "{}"}},
    }
    kubectl.apply(job)
    listed = CustomObjectsApi.list_cluster_custom_object

    async def changed_since(api: CustomObjectsApi, *given: Any, **options: Any) -> Any:  # noqa: ANN401
        found = await listed(api, *given, **options)
        kubectl.run("label", "batchjob", "night", "team=search", "--overwrite")
        return found

    monkeypatch.setattr(CustomObjectsApi, "list_cluster_custom_object", changed_since)
    words = ("release", "--namespace", namespace, "--deployment", "weir-operator")
    run_crds(*words, kubeconfig=kubeconfig)
    found = kubectl.get("batchjob", "night")
    assert found is not None
    assert "finalizers" not in found["metadata"]


IN_NEED = {
    ("weir.dev", "llmservices/finalizers", "update"),  # where owner references are checked
    ("weir.dev", "batchjobs", "delete"),  # at the end of its ttlSecondsAfterFinished
    ("weir.dev", "batchjobs", "patch"),  # the finalizer of one that was submitted
    ("core", "configmaps", "get"),  # the input of one
}
"""What the operator's rights hold that the objects of the next test do not ask for."""


def idle_rights(calls: Sequence[Call]) -> set[tuple[str, str, str]]:
    """What the operator may do, and did in none of these calls, as group, resource and verb."""
    used = {
        (call.group or "core", "/".join(filter(None, (call.resource, call.subresource))), call.verb)
        for call in calls
    }
    granted = rights([row for row in rbac_table.read() if row.account == "weir-operator"])
    optional = {"keda.sh", "monitoring.coreos.com"}  # kinds that this cluster has not
    children = {resource for _, resource, verb in granted if verb == "create"} - {
        "events",
        "leases",
    }
    return {
        (group, resource, verb)
        for group, resource, verb in granted - used - IN_NEED
        if group not in optional and (resource not in children or verb not in {"create", "delete"})
    }


def test_the_operator_does_with_its_rights_and_has_none_besides(
    rendered: Mapping[str, list[Manifest]],
    api_server: ApiServer,
    kubectl: Kubectl,
    namespace: str,
    tmp_path: Path,
) -> None:
    """By the API server's audit log. A server-side apply of what is not there is a `create` too."""
    kubeconfig = hook_account(rendered["default"], "weir-operator", namespace, api_server)
    lease = {"LEASE_NAME": "weir-operator", "LEASE_NAMESPACE": namespace, "RETRY_S": "0.2"}
    operator = OperatorProcess(
        "operator-0", tmp_path, kubeconfig=kubeconfig, settings={**PATIENT_LEASE, **lease}
    )
    scaling = {"type": "HPA", "maxReplicas": 4, "metrics": [METRIC]}
    before = api_server.audit.position()
    try:
        operator.start()
        kubectl.apply(llmservice(autoscaling=scaling), batchjob())
        configured = ("llmservice", "chat", "Configured")
        accepted = ("batchjob", "nightly", "Accepted")
        assert eventually(lambda: condition(kubectl, *configured).get("status") == "True"), operator
        assert eventually(lambda: condition(kubectl, *accepted) != {}), operator
        patch = json.dumps({"spec": {"autoscaling": None}})
        kubectl.run("patch", "llmservice", "chat", "--type=merge", "--patch", patch)
        assert eventually(lambda: kubectl.get("hpa", "chat") is None), operator
    finally:
        operator.close()

    def its() -> list[Call]:
        user = f"system:serviceaccount:{namespace}:weir-operator"
        calls = api_server.audit.calls(since=before)
        places = {"", namespace}  # in those of other tests, which end, nothing can be made
        asked = [call for call in calls if call.resource and call.namespace in places]
        return [call for call in asked if call.acting_user == user]

    # A watch is in the log once it has ended.
    assert eventually(lambda: not idle_rights(its()), within_s=30), idle_rights(its())
    assert [call for call in its() if call.status == HTTP_FORBIDDEN] == []
