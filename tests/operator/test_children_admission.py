"""The API server takes every child that planning makes, under restricted pod security."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster.kubectl import Kubectl
from tests.operator.planning.worlds import llmservice, observe_service
from weir_operator.planning.llmservice import plan_llmservice

pytestmark = pytest.mark.kubernetes

METRIC = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}
METRIC["resource"]["target"]["averageUtilization"] = 80  # type: ignore[index]
CLAIM = {
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "200Gi"}}}
}
SPECS: list[dict[str, Any]] = [
    {},
    {
        "model": {"uri": "pvc://weights/llama"},
        "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "8Gi"}},
        "slo": [{"metric": "tbt", "statistic": "p99", "thresholdSeconds": 0.1}],
        "autoscaling": {"type": "HPA", "maxReplicas": 4, "metrics": [METRIC]},
        "networkPolicy": {"allowFrom": [{"podSelector": {}}], "allowTo": [{"ports": []}]},
        "rollout": {"maxSurge": 0, "maxUnavailable": "50%"},
        "podTemplate": {
            "spec": {
                "nodeSelector": {"gpu": "h100"},
                "priorityClassName": "",
                "volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": CLAIM}}],
            }
        },
    },
]


@pytest.mark.parametrize("spec", SPECS, ids=["small", "everything"])
def test_children_and_their_pods_are_accepted(
    kubectl: Kubectl, namespace: str, spec: dict[str, Any]
) -> None:
    service = llmservice(**spec)
    service["metadata"]["namespace"] = namespace
    plan = plan_llmservice(observe_service(service, optional_kinds=frozenset()))
    done = kubectl.apply(
        *plan.children, options=["--server-side", "--dry-run=server", "--validate=strict"]
    )
    assert done.stdout.count("serverside-applied") == len(plan.children)
    assert "would violate PodSecurity" not in done.stderr
    [deployment] = [child for child in plan.children if child["kind"] == "Deployment"]
    template = deployment["spec"]["template"]
    kubectl.run("create", "serviceaccount", "chat")
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {**template["metadata"], "name": "chat-0"}
    kubectl.apply(pod, options=["--dry-run=server", "--validate=strict"])
