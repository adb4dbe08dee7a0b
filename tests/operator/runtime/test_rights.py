"""Rights that an operator loses while it runs: what it may not do is told of, and done later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.kubectl import Kubectl
from tests.chart import rbac_table
from tests.operator.runtime.test_batchjobs import World, events, has_batch, is_gone, lined, lines
from tests.operator.runtime.test_operator import batchjob, condition, llmservice
from tests.operator.runtime.test_optional_kinds import crd
from tests.support.operator_process import PATIENT_LEASE, OperatorProcess
from tests.support.stack import Component
from tests.support.waiting import eventually
from weir_operator.planning.kinds import POD_MONITOR

pytestmark = pytest.mark.kubernetes
USER = "weir-bounded"
Rights = Callable[..., None]


def role(without: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """What the chart gives the operator, but for these verbs of these resources."""
    rules = [
        {"apiGroups": ["" if group == "core" else group], "resources": [resource], "verbs": verbs}
        for row in rbac_table.read()
        if row.account == "weir-operator"
        for group in row.groups
        for resource in row.resources
        if (verbs := [verb for verb in row.verbs if (resource, verb) not in without])
    ]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": USER},
        "rules": rules,
    }


@pytest.fixture(scope="module")
def rights(api_server: ApiServer) -> Iterator[Rights]:
    """Gives the operator all its rights but for those that are named."""

    def give(*without: tuple[str, str]) -> None:
        api_server.kubectl.apply(role(without))

    bound = ("clusterrolebinding", USER, f"--clusterrole={USER}", f"--user={USER}")
    give()
    api_server.kubectl.run("create", *bound)
    yield give
    api_server.kubectl.run("delete", "clusterrole,clusterrolebinding", USER)


@pytest.fixture(scope="module")
def world(
    api_server: ApiServer, rights: Rights, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A control plane, and an operator that has no rights but those it is given."""
    rights()
    folder = tmp_path_factory.mktemp("rights")
    data = folder / "controlplane"
    settings = {"WEIR_DEFAULT_TENANT": "team", "WEIR_MODELS": "m", "WEIR_POLL_S": "0.1"}
    controlplane = Component("controlplane", folder, {"WEIR_DATA_DIR": str(data), **settings})
    operator = OperatorProcess(
        "operator-0",
        folder,
        kubeconfig=api_server.user_kubeconfig(USER),
        control_plane_url=controlplane.url,
        settings={
            **PATIENT_LEASE,
            "CONTROL_PLANE_TOKEN_FILE": str(data / "admin.key"),
            "RESYNC_S": "1",
        },
    )
    try:
        controlplane.start()
        operator.start()
        yield World(controlplane, operator, Path(data / "admin.key").read_text().strip())
    finally:
        operator.close()
        controlplane.close()


def test_a_status_that_may_not_be_written_is_told_of_and_work_goes_on(
    world: World, rights: Rights, kubectl: Kubectl, namespace: str
) -> None:
    """Pods were not registered without it, so no batch ran on them, and nothing said why."""
    rights(("llmservices/status", "patch"))
    kubectl.apply(llmservice())
    told = "--field-selector=reason=StatusRefused"
    assert eventually(lambda: kubectl.list("events", told)), world.operator
    (event,) = kubectl.list("events", told)
    assert "helm upgrade" in event["message"]
    assert "llmservices/status" in event["message"]
    assert eventually(lambda: world.services(namespace).get("chat")), world.operator
    assert world.operator.metric("weir_operator_status_refused_total") > 0
    rights()
    registered = partial(condition, kubectl, "llmservice", "chat", "Registered")
    assert eventually(lambda: registered().get("status") == "True")
    assert events(kubectl).count("StatusRefused") == 1


def is_forbidden(kubectl: Kubectl, name: str) -> bool:
    return condition(kubectl, "batchjob", name, "Accepted").get("reason") == "Forbidden"


def test_a_batch_that_needs_a_right_waits_and_says_so(
    world: World, rights: Rights, kubectl: Kubectl, namespace: str
) -> None:
    """It had no status at all, and no Event: only a log line every minute."""
    rights(("configmaps", "get"), ("batchjobs", "patch"))
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "lines"}}
    kubectl.apply(config_map | {"data": {"batch": lines(3)}}, llmservice())
    of_config_map = {"configMapKeyRef": {"name": "lines", "key": "batch"}}
    needs = {"read": "configmaps", "kept": "batchjobs"}
    kubectl.apply(batchjob("read", input=of_config_map), lined("kept", count=3))
    for name, resource in needs.items():
        assert eventually(partial(is_forbidden, kubectl, name)), world.operator
        told = condition(kubectl, "batchjob", name, "Accepted")["message"]
        assert resource in told
        assert "helm upgrade" in told
    assert world.jobs(namespace) == {}
    rights()
    assert eventually(lambda: all(has_batch(kubectl, name) for name in needs)), world.operator
    assert eventually(lambda: events(kubectl).count("Accepted") == len(needs)), world.operator
    assert events(kubectl).count("Forbidden") == len(needs)


def test_a_deletion_that_waits_for_a_right_says_so_and_is_done_later(
    world: World, rights: Rights, kubectl: Kubectl
) -> None:
    rights()
    kubectl.apply(llmservice(), lined())
    assert eventually(lambda: has_batch(kubectl, "nightly")), world.operator
    rights(("batchjobs", "patch"))
    kubectl.run("delete", "batchjob", "nightly", "--wait=false")
    told = "--field-selector=reason=FinalizerKept"
    assert eventually(lambda: kubectl.list("events", told)), world.operator
    assert "batchjobs" in kubectl.list("events", told)[0]["message"]
    assert not is_gone(kubectl)
    rights()
    assert eventually(lambda: is_gone(kubectl)), world.operator
    assert len(kubectl.list("events", told)) == 1


def test_an_end_that_may_not_be_carried_out_is_told_of_and_done_later(
    world: World, rights: Rights, kubectl: Kubectl
) -> None:
    """It stayed for ever, and only a log line in a minute said why."""
    rights(("batchjobs", "delete"))
    refused = {"uri": "file:///nowhere/input.jsonl"}
    kubectl.apply(llmservice(), batchjob("nightly", input=refused, ttlSecondsAfterFinished=0))
    told = "--field-selector=reason=DeletionRefused"
    assert eventually(lambda: kubectl.list("events", told)), world.operator
    (event,) = kubectl.list("events", told)
    assert "ttlSecondsAfterFinished" in event["message"]
    assert "helm upgrade" in event["message"]
    assert condition(kubectl, "batchjob", "nightly", "Failed")["status"] == "True"
    rights()
    assert eventually(lambda: is_gone(kubectl)), world.operator
    assert len(kubectl.list("events", told)) == 1


def test_who_may_not_list_any_more_is_not_ready_and_says_why(world: World, rights: Rights) -> None:
    """It was ready all the time, and saw neither new pods nor that objects had gone."""
    rights(("pods", "list"), ("pods", "watch"))
    operator = world.operator
    assert eventually(lambda: "pods is forbidden" in operator.get("readyz")), operator
    assert operator.leads()
    rights()
    assert eventually(operator.ready), operator


def test_a_kind_that_may_not_be_listed_holds_up_no_other(
    world: World, rights: Rights, kubectl: Kubectl
) -> None:
    """A full list ended at it: kinds that came, and deletions of kinds after it, went unnoticed."""
    rights(("pods", "list"), ("pods", "watch"))
    operator, manifest = world.operator, crd(POD_MONITOR)
    assert eventually(lambda: "pods is forbidden" in operator.get("readyz")), operator
    kubectl.apply(llmservice(), manifest)
    try:
        assert eventually(lambda: kubectl.get(POD_MONITOR.plural, "chat")), operator
        assert "pods is forbidden" in operator.get("readyz")
    finally:
        rights()
        kubectl.run("delete", "crd", manifest["metadata"]["name"], "--timeout=110s")
    assert eventually(operator.ready), operator
