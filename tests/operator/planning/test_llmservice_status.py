"""What `kubectl get llmsvc` and `kubectl describe` say of an LLMService, case by case."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.operator.planning.worlds import (
    NOW,
    condition,
    deployment_status,
    llmservice,
    message,
    observe_service,
    replica,
    with_deployment,
)
from weir_operator.planning.llmservice import plan_llmservice
from weir_operator.planning.observed import PodReport, ServiceReport, SloReport

SLO = [{"metric": "tbt", "statistic": "p99", "thresholdSeconds": 0.1}]


def slo(measured_s: float | None, attained: bool | None) -> SloReport:
    return SloReport(
        metric="tbt", statistic="p99", threshold_s=0.1, measured_s=measured_s, attained=attained
    )


def report(*pods: PodReport, policy_fresh: bool | None = True) -> ServiceReport:
    return ServiceReport(
        model="chat",
        service_account="chat",
        pods=pods,
        policy_fresh=policy_fresh,
        offline_tokens_per_s=1234.5,
    )


def pod_report(number: int, **given: object) -> PodReport:
    base = PodReport(
        uid=f"pod-{number}",
        name=f"chat-5d-{number}",
        state="serving",
        policy_expires_at=NOW + timedelta(seconds=60),
        total_kv_blocks=1000,
        offline_kv_threshold_blocks=700,
        step_budget_s=0.05,
        offline_tokens_per_s=617.2,
    )
    return replace(base, **given)  # type: ignore[arg-type]


def test_a_service_that_serves_is_ready() -> None:
    observed = with_deployment(observe_service(), deployment_status(2))
    plan = plan_llmservice(observed)
    assert condition(plan.status, "Ready") == ("True", "Serving")
    assert condition(plan.status, "Available") == ("True", "MinimumReplicasReady")
    assert condition(plan.status, "Progressing") == ("False", "RolledOut")
    assert plan.status is not None
    assert plan.status["url"] == "http://chat.team.svc:8000"
    assert plan.status["selector"] == "app.kubernetes.io/component=agent,weir.dev/llmservice=chat"
    assert (plan.status["replicas"], plan.status["readyReplicas"]) == (2, 2)
    assert all(item["observedGeneration"] == 3 for item in plan.status["conditions"])
    assert {"Serving", "MinimumReplicasReady"} <= {note.reason for note in plan.events}


def test_pods_that_admission_refuses_show_in_available() -> None:
    refused = {
        "type": "ReplicaFailure",
        "status": "True",
        "message": "violates PodSecurity restricted",
    }
    observed = with_deployment(observe_service(pods=()), deployment_status(0, refused))
    plan = plan_llmservice(observed)
    assert condition(plan.status, "Available") == ("False", "ReplicaFailure")
    assert "violates PodSecurity" in message(plan.status, "Available")
    assert condition(plan.status, "Ready") == ("False", "NotAvailable")
    assert "violates PodSecurity" in message(plan.status, "Ready")


def test_what_keeps_a_pod_from_starting_is_said() -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff"}}, "name": "agent"}
    stuck = replica(1, status={"containerStatuses": [waiting]})
    observed = with_deployment(observe_service(pods=(stuck,)), deployment_status(0))
    plan = plan_llmservice(observed)
    assert condition(plan.status, "Available") == ("False", "TooFewReady")
    assert "pod chat-5d-1: container agent: ImagePullBackOff" in message(plan.status, "Available")
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pending = replica(
        1, status={"phase": "Pending", "conditions": [scheduled | {"message": "no GPU"}]}
    )
    plan = plan_llmservice(replace(observed, pods=(pending,)))
    assert "Unschedulable: no GPU" in message(plan.status, "Available")


def test_which_image_a_pod_waits_for_is_said_and_why() -> None:
    """`ImagePullBackOff` alone sent its reader to the pod."""
    said = 'Back-off pulling image "r.test/agent:9": ErrImagePull:\n r.test/agent:9: not found'
    assert available_of_waiting(said).endswith(
        "pod chat-5d-1: container agent: ImagePullBackOff: Back-off pulling image "
        '"r.test/agent:9": ErrImagePull: r.test/agent:9: not found'
    )
    assert available_of_waiting("").endswith("container agent: ImagePullBackOff")
    long = available_of_waiting(f'Back-off pulling image "r.test/agent:9"{" x" * 999}: not found')
    assert 'agent:9" x' in long
    assert long.endswith("x: not found")
    assert len(long) < 700


def available_of_waiting(said: str) -> str:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": said}}}
    stuck = replica(1, status={"containerStatuses": [waiting | {"name": "agent"}]})
    observed = with_deployment(observe_service(pods=(stuck,)), deployment_status(0))
    return message(plan_llmservice(observed).status, "Available")


@pytest.mark.parametrize(
    ("ready", "unavailable", "expected"),
    [(2, 0, "True"), (1, 0, "False"), (1, 1, "True"), (0, 2, "False"), (1, "50%", "True")],
)
def test_available_follows_what_the_rollout_allows(
    ready: int, unavailable: int | str, expected: str
) -> None:
    service = llmservice(rollout={"maxUnavailable": unavailable})
    observed = with_deployment(observe_service(service), deployment_status(ready))
    assert condition(plan_llmservice(observed).status, "Available")[0] == expected


@pytest.mark.parametrize(("surge", "expected"), [(0, "True"), ("0%", "True"), (1, "False")])
def test_without_a_surge_a_rollout_takes_one_replica_however_small_the_share(
    surge: int | str, expected: str
) -> None:
    """As the Deployment does: a quarter of two is none, and none could ever be replaced."""
    service = llmservice(rollout={"maxSurge": surge, "maxUnavailable": "25%"})
    observed = with_deployment(observe_service(service), deployment_status(1))
    assert condition(plan_llmservice(observed).status, "Available")[0] == expected


def test_a_service_scaled_to_zero_is_not_available() -> None:
    observed = with_deployment(
        observe_service(llmservice(replicas=0), pods=()), deployment_status(0)
    )
    plan = plan_llmservice(observed)
    assert condition(plan.status, "Available") == ("False", "ScaledToZero")
    assert condition(plan.status, "Progressing") == ("False", "RolledOut")


def test_a_model_that_never_loads_exceeds_its_deadline() -> None:
    told = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    observed = with_deployment(observe_service(), deployment_status(0, told))
    found = condition(plan_llmservice(observed).status, "Progressing")
    assert found == ("False", "ProgressDeadlineExceeded")


def test_a_deployment_that_has_not_seen_its_change_is_rolling_out() -> None:
    observed = with_deployment(observe_service(), deployment_status(2, observedGeneration=0))
    assert condition(plan_llmservice(observed).status, "Progressing") == ("True", "RollingOut")


def test_fields_without_effect_are_named() -> None:
    service = llmservice(colocation={"utilityRatio": 0.5, "forecast": {"window": "2h"}})
    plan = plan_llmservice(observe_service(service))
    assert condition(plan.status, "Configured") == ("True", "FieldsWithoutEffect")
    found = message(plan.status, "Configured")
    assert "colocation.utilityRatio" in found
    assert "colocation.forecast" in found


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ({"backend": "torch"}, "FieldsWithoutEffect"),
        ({"backend": "torch", "image": "example.org/own-engine:1"}, "Applied"),
        ({"backend": "vllm"}, "Applied"),
    ],
)
def test_an_engine_that_there_is_not_is_said(engine: dict[str, str], reason: str) -> None:
    """The operator's image is vLLM's, whatever is asked; one of the user's may be another."""
    plan = plan_llmservice(observe_service(llmservice(engine=engine)))
    assert condition(plan.status, "Configured") == ("True", reason)
    named = "engine.backend" in message(plan.status, "Configured")
    assert named == (reason == "FieldsWithoutEffect")


def test_what_a_newer_crd_let_in_changes_nothing_but_two_conditions() -> None:
    service = llmservice(engine={"backend": "tpu"})
    kept = {"type": "Available", "status": "True", "reason": "MinimumReplicasReady"}
    service["status"] = {"conditions": [kept], "replicas": 2}
    plan = plan_llmservice(observe_service(service))
    assert plan.children == ()
    assert plan.requests == ()
    assert condition(plan.status, "Configured") == ("False", "InvalidSpec")
    assert "spec.engine.backend" in message(plan.status, "Configured")
    assert condition(plan.status, "Available") == ("True", "MinimumReplicasReady")
