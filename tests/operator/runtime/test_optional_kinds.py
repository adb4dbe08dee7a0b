"""Kinds that a cluster may lack: PodMonitor and ScaledObject are made once they are there."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.kubectl import Kubectl
from tests.operator.runtime.test_operator import condition, is_another, llmservice, uid
from tests.support.operator_process import PATIENT_LEASE, OperatorProcess
from tests.support.waiting import eventually
from weir_operator.planning.kinds import POD_MONITOR, SCALED_OBJECT, Kind

pytestmark = pytest.mark.kubernetes
KEDA = {"type": "KEDA", "maxReplicas": 4, "triggers": [{"type": "cron"}]}


def crd(kind: Kind) -> dict[str, Any]:
    """A definition of the kind that takes anything."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True}
    names = {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {**names, "listKind": f"{kind.kind}List"},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def test_kinds_that_come_are_used_and_kinds_that_go_stop_nothing(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    operator = OperatorProcess(
        "operator-0",
        tmp_path,
        kubeconfig=api_server.kubeconfig,
        namespace=namespace,
        settings={**PATIENT_LEASE, "RESYNC_S": "1"},
    )
    crds = [crd(POD_MONITOR), crd(SCALED_OBJECT)]
    configured = ("llmservice", "chat", "Configured")
    try:
        operator.start()
        kubectl.apply(llmservice(autoscaling=KEDA))
        assert eventually(lambda: condition(kubectl, *configured).get("reason") == "KindMissing")
        kubectl.apply(*crds)
        assert eventually(lambda: condition(kubectl, *configured).get("status") == "True"), operator
        for kind in (POD_MONITOR.plural, SCALED_OBJECT.plural):
            before = uid(kubectl, kind, "chat")
            assert before is not None
            kubectl.run("delete", kind, "chat", "--wait=false")
            assert eventually(partial(is_another, kubectl, kind, "chat", before)), (kind, operator)
        for manifest in crds:
            kubectl.run("delete", "crd", manifest["metadata"]["name"], "--timeout=110s")
        assert eventually(lambda: condition(kubectl, *configured).get("reason") == "KindMissing")
        kubectl.run("scale", "llmservice", "chat", "--replicas=2")
        assert eventually(lambda: replicas(kubectl) == 2), operator
    finally:
        operator.close()
        for manifest in crds:
            kubectl.run("delete", "crd", manifest["metadata"]["name"], "--ignore-not-found")


def replicas(kubectl: Kubectl) -> int:
    """What the Deployment asks for."""
    found = kubectl.get("deployment", "chat") or {"spec": {}}
    return int(found["spec"].get("replicas", -1))
