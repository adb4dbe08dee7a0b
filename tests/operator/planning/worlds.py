"""A cluster small enough to think about: objects, and what applying a plan makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from weir_operator.planning.kinds import FINALIZER
from weir_operator.planning.observed import (
    BatchReport,
    ObservedBatchJob,
    ObservedLLMService,
    OperatorDefaults,
    PodReport,
    ServiceReport,
)
from weir_operator.planning.types import CancelBatch, Plan, PutBatchJob, RegisterPods

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
DEFAULTS = OperatorDefaults(
    control_plane_url="http://weir-controlplane.weir:8080",
    control_plane_namespace="weir",
    vllm_image="example.org/weir-agent-vllm:1",
    torch_image="example.org/weir-agent-torch:1",
)
OPTIONAL = frozenset({"PodMonitor", "ScaledObject"})


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for name, value in over.items():
        known = result.get(name)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        result[name] = merge(known, value) if both else value  # type: ignore[arg-type]
    return result


def llmservice(**spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": "chat", "namespace": "team", "uid": "svc-1", "generation": 3},
        "spec": merge({"model": {"uri": "hf://meta/llama"}, "replicas": 2}, spec),
    }


def replica(number: int, **changes: object) -> dict[str, Any]:
    pod = {
        "metadata": {
            "name": f"chat-5d-{number}",
            "uid": f"pod-{number}",
            "labels": {"weir.dev/llmservice": "chat", "pod-template-hash": "5d"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "chat-5d", "controller": True}],
        },
        "spec": {"serviceAccountName": "chat"},
        "status": {"phase": "Running"},
    }
    return merge(pod, changes)


def observe_service(
    service: Mapping[str, Any] | None = None, **given: object
) -> ObservedLLMService:
    world: dict[str, Any] = {
        "service": service or llmservice(),
        "children": {},
        "pods": (replica(1), replica(2)),
        "control_plane_reached": True,
        "report": None,
        "optional_kinds": OPTIONAL,
        "defaults": DEFAULTS,
        "now": NOW,
    }
    return ObservedLLMService(**(world | given))


def deployment_status(ready: int, *conditions: dict[str, Any], **changes: object) -> dict[str, Any]:
    counters = {"replicas": ready, "readyReplicas": ready, "updatedReplicas": ready}
    return {"observedGeneration": 1, **counters, "conditions": list(conditions)} | changes


def with_deployment(observed: ObservedLLMService, status: dict[str, Any]) -> ObservedLLMService:
    """The world after the children were applied, with the Deployment in this status."""
    from weir_operator.planning.llmservice import plan_llmservice

    observed = apply_service(observed, plan_llmservice(observed))
    place = ("Deployment", "chat")
    live = merge(observed.children[place], {"metadata": {"generation": 1}, "status": status})
    return replace(observed, children={**observed.children, place: live})


def apply_service(observed: ObservedLLMService, plan: Plan) -> ObservedLLMService:
    """The world after a plan: what was applied is there, what was removed is not."""
    children = dict(observed.children)
    for number, child in enumerate(plan.children):
        place = (child["kind"], child["metadata"]["name"])
        uid = {"metadata": {"uid": f"child-{number}"}}
        children[place] = merge(merge(uid, children.get(place, {})), child)
    for ref in plan.removals:
        assert children.pop((ref.kind, ref.name))["metadata"]["uid"] == ref.uid
    service = dict(observed.service)
    if plan.status is not None:
        service["status"] = plan.status
    report = observed.report
    for request in plan.requests:
        if isinstance(request, RegisterPods):
            known = {pod.uid: pod for pod in report.pods} if report else {}
            report = replace(
                report or ServiceReport(model=None, service_account=""),
                model=request.model,
                service_account=request.service_account,
                pods=tuple(
                    known.get(pod.uid, PodReport(uid=pod.uid, name=pod.name))
                    for pod in request.pods
                ),
            )
        else:
            report = None
    return replace(observed, children=children, service=service, report=report)


def condition(status: Mapping[str, Any] | None, kind: str) -> tuple[str, str]:
    """(status, reason) of a condition."""
    assert status is not None
    found = next(item for item in status["conditions"] if item["type"] == kind)
    return found["status"], found["reason"]


def message(status: Mapping[str, Any] | None, kind: str) -> str:
    assert status is not None
    found = next(item for item in status["conditions"] if item["type"] == kind)
    return str(found["message"])


# --- BatchJobs -------------------------------------------------------------------------------


def batchjob(**spec: object) -> dict[str, Any]:
    base = {"serviceRef": {"name": "chat"}, "input": {"inline": '{"custom_id": "1"}\n'}}
    return {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "BatchJob",
        "metadata": {"name": "night", "namespace": "team", "uid": "job-1", "generation": 1},
        "spec": base | spec,
    }


def observe_job(job: Mapping[str, Any] | None = None, **given: object) -> ObservedBatchJob:
    world: dict[str, Any] = {
        "job": job or batchjob(),
        "service": llmservice(),
        "config_map": None,
        "control_plane_reached": True,
        "report": None,
        "now": NOW,
    }
    return ObservedBatchJob(**(world | given))


def batch(status: str = "in_progress", **given: object) -> BatchReport:
    base: dict[str, Any] = {
        "uid": "job-1",
        "batch_id": "batch_1",
        "status": status,
        "total_lines": 300,
        "completed_lines": 30,
        "started_at": NOW - timedelta(minutes=5),
        "expires_at": NOW + timedelta(hours=24),
        "eta_at": NOW + timedelta(hours=1),
    }
    return BatchReport(**(base | given))


def apply_job(observed: ObservedBatchJob, plan: Plan) -> ObservedBatchJob:
    """The world after a plan; the control plane has done at once what it was asked."""
    metadata = dict(observed.job["metadata"])
    if plan.finalizer is True:
        metadata["finalizers"] = [*metadata.get("finalizers", ()), FINALIZER]
    if plan.finalizer is False:
        metadata["finalizers"] = [x for x in metadata.get("finalizers", ()) if x != FINALIZER]
    job = {**observed.job, "metadata": metadata}
    if plan.status is not None:
        job["status"] = plan.status
    report = observed.report
    for request in plan.requests:
        match request:
            case PutBatchJob() if report is None:
                suspended = request.suspended
                report = BatchReport(
                    uid=request.uid,
                    batch_id=None if suspended else "batch_1",
                    status="suspended" if suspended else "validating",
                    suspended=suspended,
                )
            case PutBatchJob() if report is not None:
                batch_id = report.batch_id or (None if request.suspended else "batch_1")
                report = replace(report, suspended=request.suspended, batch_id=batch_id)
            case CancelBatch() if report is not None:
                report = replace(report, status="cancelled")
            case _:
                raise AssertionError(request)
    return replace(observed, job=job, report=report)
