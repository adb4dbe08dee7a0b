"""What `kubectl get llmsvc` and `kubectl describe` say of an LLMService, case by case."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.operator.planning.worlds import (
    NOW,
    apply_service,
    condition,
    deployment_status,
    llmservice,
    merge,
    message,
    observe_service,
    replica,
    with_deployment,
)
from weir_operator.planning.llmservice import plan_llmservice
from weir_operator.planning.observed import PodReport, Refusal, ServiceReport, SloReport
from weir_operator.planning.types import RegisterPods, ReleaseService

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


def test_a_refused_child_is_said_and_stays_asked_for() -> None:
    observed = observe_service()
    (wish,) = (c for c in plan_llmservice(observed).children if c["kind"] == "Deployment")
    refusal = Refusal(
        status_code=422, code="Invalid", message="spec.template.spec: bad field", wish=wish
    )
    observed = replace(observed, refusals={("Deployment", "chat"): refusal})
    plan = plan_llmservice(observed)
    assert condition(plan.status, "Configured") == ("False", "ChildRefused")
    assert message(plan.status, "Ready") == "Deployment chat: spec.template.spec: bad field"
    assert "Deployment" in {child["kind"] for child in plan.children}
    corrected = llmservice(podTemplate={"spec": {"nodeSelector": {"gpu": "h100"}}})
    plan = plan_llmservice(replace(observed, service=corrected))
    assert condition(plan.status, "Configured")[0] == "True"


@pytest.mark.parametrize("finalizer", ["foregroundDeletion", "example.com/held"])
def test_a_child_that_is_being_deleted_is_said_until_it_is_gone(finalizer: str) -> None:
    """Nothing of a new spec is rolled out by then, and all was said to be as the spec asks."""
    observed = with_deployment(observe_service(), deployment_status(2))
    place = ("Deployment", "chat")
    ends = {"deletionTimestamp": "2026-05-04T11:00:00Z", "finalizers": [finalizer]}
    ending = merge(observed.children[place], {"metadata": ends})
    plan = plan_llmservice(replace(observed, children={**observed.children, place: ending}))
    assert condition(plan.status, "Configured") == ("False", "ChildRefused")
    assert f"Deployment chat is being deleted and does nothing more, held by {finalizer}" in (
        message(plan.status, "Ready")
    )

    gone = {where: child for where, child in observed.children.items() if where != place}
    plan = plan_llmservice(replace(observed, children=gone))
    assert condition(plan.status, "Configured") == ("True", "Applied")
    assert "Deployment" in {child["kind"] for child in plan.children}


def test_a_child_that_is_still_refused_is_said_whatever_else_changed() -> None:
    observed = observe_service()
    (wish,) = (c for c in plan_llmservice(observed).children if c["kind"] == "NetworkPolicy")
    refusal = Refusal(status_code=422, code="Invalid", message="no CIDR", wish=wish)
    scaled = llmservice(replicas=3)
    scaled["metadata"]["generation"] += 1
    plan = plan_llmservice(
        replace(observed, service=scaled, refusals={("NetworkPolicy", "chat"): refusal})
    )
    assert condition(plan.status, "Configured") == ("False", "ChildRefused")
    assert condition(plan.status, "Ready") == ("False", "NotConfigured")


OURS = {"weir.dev/llmservice": "chat", "app.kubernetes.io/managed-by": "weir-operator"}
ANOTHERS = [{"kind": "Release", "name": "r", "uid": "r", "controller": True}]


@pytest.mark.parametrize(
    ("name", "metadata", "taken_back"),
    [
        ("chat", {"labels": OURS}, True),
        ("chat", {"labels": OURS, "ownerReferences": ANOTHERS}, False),
        ("chat", {"labels": {"weir.dev/llmservice": "chat"}}, False),
        ("chat-copy", {"labels": OURS}, False),
    ],
)
def test_an_orphan_alone_is_taken_back(
    name: str, metadata: dict[str, object], *, taken_back: bool
) -> None:
    """Seen in what is not asked for, and would be deleted if it were the service's own."""
    orphan = {
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "uid": "x", **metadata},
    }
    place = ("HorizontalPodAutoscaler", name)
    plan = plan_llmservice(observe_service(children={place: orphan}))
    assert [ref.name for ref in plan.removals] == ([name] if taken_back else [])


def test_a_name_that_is_taken_is_left_alone() -> None:
    foreign = {"kind": "Service", "metadata": {"name": "chat", "uid": "x"}}
    plan = plan_llmservice(observe_service(children={("Service", "chat"): foreign}))
    assert condition(plan.status, "Configured") == ("False", "NameTaken")
    assert "Service" not in {child["kind"] for child in plan.children}
    assert plan.removals == ()
    assert plan.requeue_after_s is not None


def test_keda_that_is_not_installed_is_said() -> None:
    autoscaling = {"type": "KEDA", "maxReplicas": 2, "triggers": [{"type": "cron"}]}
    service = llmservice(autoscaling=autoscaling)
    plan = plan_llmservice(observe_service(service, optional_kinds=frozenset()))
    assert condition(plan.status, "Configured") == ("False", "KindMissing")
    assert "KEDA" in message(plan.status, "Configured")
    # What was refused of a child that is not asked for any more is not said.
    gone = Refusal(status_code=404, code="NotFound", message="no such kind", wish={"kind": "x"})
    refusals = {("ScaledObject", "chat"): gone}
    observed = observe_service(service, optional_kinds=frozenset(), refusals=refusals)
    assert condition(plan_llmservice(observed).status, "Configured") == ("False", "KindMissing")


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


@pytest.mark.parametrize("value", ["true", "TRUE", "yes", ""])
def test_a_paused_service_keeps_its_status_and_nothing_else_is_written(value: str) -> None:
    service = llmservice()
    service["metadata"]["annotations"] = {"weir.dev/paused": value}
    plan = plan_llmservice(observe_service(service))
    assert plan.children == ()
    assert plan.removals == ()
    assert condition(plan.status, "Configured") == ("Unknown", "Paused")


def test_a_service_whose_pause_is_false_is_planned_as_ever() -> None:
    service = llmservice()
    service["metadata"]["annotations"] = {"weir.dev/paused": "False"}
    assert plan_llmservice(observe_service(service)).children != ()


def test_children_that_are_no_longer_wanted_are_removed_by_uid() -> None:
    metrics = [{"type": "Resource", "resource": {"name": "cpu"}}]
    scaled = llmservice(autoscaling={"type": "HPA", "maxReplicas": 4, "metrics": metrics})
    observed = observe_service(scaled)
    observed = apply_service(observed, plan_llmservice(observed))
    plan = plan_llmservice(replace(observed, service=llmservice()))
    [ref] = plan.removals
    live = observed.children["HorizontalPodAutoscaler", "chat"]
    assert (ref.kind, ref.name, ref.uid) == (
        "HorizontalPodAutoscaler",
        "chat",
        live["metadata"]["uid"],
    )


def test_a_child_that_cannot_be_deleted_is_said_until_it_is_gone_or_asked_for() -> None:
    metrics = [{"type": "Resource", "resource": {"name": "cpu"}}]
    scaled = llmservice(autoscaling={"type": "HPA", "maxReplicas": 4, "metrics": metrics})
    observed = observe_service(scaled)
    observed = apply_service(observed, plan_llmservice(observed))
    place = ("HorizontalPodAutoscaler", "chat")
    uid = observed.children[place]["metadata"]["uid"]
    refusal = Refusal(status_code=403, code="Forbidden", message="not on a Friday", kept_uid=uid)
    asked_for = replace(observed, refusals={place: refusal})
    assert condition(plan_llmservice(asked_for).status, "Configured")[0] == "True"
    kept = replace(asked_for, service=llmservice())
    plan = plan_llmservice(kept)
    assert condition(plan.status, "Configured") == ("False", "ChildRefused")
    assert message(plan.status, "Configured") == (
        "HorizontalPodAutoscaler chat cannot be deleted: not on a Friday"
    )
    assert plan.removals != ()
    gone = {where: child for where, child in kept.children.items() if where != place}
    plan = plan_llmservice(replace(kept, children=gone))
    assert condition(plan.status, "Configured") == ("True", "Applied")


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


# --- what the control plane says ------------------------------------------------------------


def test_pods_are_registered_terminating_ones_included() -> None:
    ending = replica(2, metadata={"deletionTimestamp": "2026-05-04T11:59:00Z"})
    ended = replica(3, status={"phase": "Failed"})
    plan = plan_llmservice(observe_service(pods=(ending, replica(1), ended)))
    [request] = plan.requests
    assert isinstance(request, RegisterPods)
    assert [pod.uid for pod in request.pods] == ["pod-1", "pod-2"]
    assert (request.model, request.service_account) == ("chat", "chat")
    assert condition(plan.status, "Registered") == ("False", "Registering")


@pytest.mark.parametrize(
    "changes",
    [
        {"metadata": {"ownerReferences": []}},
        {"metadata": {"ownerReferences": [{"kind": "ReplicaSet", "name": "other-5d"}]}},
        {"metadata": {"labels": {"pod-template-hash": "6e"}}},
        {"metadata": {"labels": {"weir.dev/llmservice": "other"}}},
        {"spec": {"serviceAccountName": "default"}},
    ],
)
def test_a_pod_that_only_looks_like_a_replica_may_not_speak_for_the_service(
    changes: dict[str, object],
) -> None:
    plan = plan_llmservice(observe_service(pods=(replica(1), replica(2, **changes))))
    [request] = plan.requests
    assert isinstance(request, RegisterPods)
    assert [pod.uid for pod in request.pods] == ["pod-1"]


def test_threshold_budget_and_throughput_of_each_pod_are_shown() -> None:
    pods = (pod_report(2), pod_report(1, state=None, policy_expires_at=None, step_budget_s=None))
    plan = plan_llmservice(observe_service(report=report(*pods)))
    assert plan.status is not None
    first, second = plan.status["pods"]
    assert first["name"] == "chat-5d-1"
    assert first["state"] == "unknown"
    assert "policyFresh" not in first
    assert second == {
        "name": "chat-5d-2",
        "uid": "pod-2",
        "state": "serving",
        "policyFresh": True,
        "totalKVBlocks": 1000,
        "offlineKVThresholdBlocks": 700,
        "stepBudgetSeconds": 0.05,
        "offlineTokensPerSecond": 620.0,
    }
    assert plan.status["offlineTokensPerSecond"] == 1200.0
    assert condition(plan.status, "Registered") == ("True", "PodsRegistered")


def test_an_objective_that_one_pod_misses_is_missed() -> None:
    pods = (pod_report(1, slo=(slo(0.08, True),)), pod_report(2, slo=(slo(0.131, False),)))
    plan = plan_llmservice(observe_service(llmservice(slo=SLO), report=report(*pods)))
    assert condition(plan.status, "SLOMet") == ("False", "Missed")
    assert "tbt p99 is 0.13 s, allowed 0.1 s" in message(plan.status, "SLOMet")
    assert plan.status is not None
    assert plan.status["slo"] == [
        {
            "metric": "tbt",
            "statistic": "p99",
            "thresholdSeconds": 0.1,
            "measuredSeconds": 0.13,
            "attained": False,
        }
    ]


@pytest.mark.parametrize(
    ("spec", "measured", "expected"),
    [
        (SLO, (0.05, True), ("True", "Attained")),
        (SLO, (None, None), ("Unknown", "NotMeasured")),
        ([], (0.05, True), ("Unknown", "NoObjective")),
    ],
)
def test_objectives_hold_are_not_measured_or_are_not_given(
    spec: list[dict[str, object]],
    measured: tuple[float | None, bool | None],
    expected: tuple[str, str],
) -> None:
    pods = (pod_report(1, slo=(slo(*measured),)),)
    plan = plan_llmservice(observe_service(llmservice(slo=spec), report=report(*pods)))
    assert condition(plan.status, "SLOMet") == expected


@pytest.mark.parametrize(
    ("attained", "found"),
    [(True, ("True", "Attained")), (False, ("False", "Missed"))],
)
def test_what_was_found_of_objectives_outlasts_minutes_without_requests(
    attained: bool, found: tuple[str, str]
) -> None:
    """One that is asked something every other minute does not send an Event each time."""
    asked = report(pod_report(1, slo=(slo(0.07 if attained else 0.2, attained),)))
    quiet = report(pod_report(1, slo=(slo(None, None),)))
    service = llmservice(slo=SLO)
    first = plan_llmservice(observe_service(service, report=asked, slo_silence_s=0.0))
    assert condition(first.status, "SLOMet") == found
    assert found[1] in {note.reason for note in first.events}
    told = {**service, "status": first.status}
    minute = plan_llmservice(observe_service(told, report=quiet, slo_silence_s=61.0))
    assert condition(minute.status, "SLOMet") == found
    assert message(minute.status, "SLOMet") == message(first.status, "SLOMet")
    assert found[1] not in {note.reason for note in minute.events}
    assert minute.requeue_after_s == 539.0  # nobody else would tell that it is over
    again = plan_llmservice(
        observe_service({**service, "status": minute.status}, report=asked, slo_silence_s=0.0)
    )
    assert found[1] not in {note.reason for note in again.events}
    later = plan_llmservice(observe_service(told, report=quiet, slo_silence_s=600.0))
    assert condition(later.status, "SLOMet") == ("Unknown", "NotMeasured")
    assert later.requeue_after_s is None


def test_what_was_found_of_other_objectives_does_not_stand() -> None:
    quiet = report(pod_report(1, slo=(slo(None, None),)))
    asked = report(pod_report(1, slo=(slo(0.07, True),)))
    service = llmservice(slo=SLO)
    first = plan_llmservice(observe_service(service, report=asked, slo_silence_s=0.0))
    stricter = {**llmservice(slo=[{**SLO[0], "thresholdSeconds": 0.05}]), "status": first.status}
    plan = plan_llmservice(observe_service(stricter, report=quiet, slo_silence_s=61.0))
    assert condition(plan.status, "SLOMet") == ("Unknown", "NotMeasured")
    scaled = {**llmservice(slo=SLO, replicas=3), "status": first.status}
    plan = plan_llmservice(observe_service(scaled, report=quiet, slo_silence_s=61.0))
    assert condition(plan.status, "SLOMet") == ("True", "Attained")
    gone = plan_llmservice(
        observe_service({**service, "status": first.status}, report=None, slo_silence_s=61.0)
    )
    assert condition(gone.status, "SLOMet") == ("Unknown", "NotMeasured")


def test_pods_whose_policy_ended_are_named() -> None:
    stale = pod_report(1, policy_expires_at=NOW - timedelta(seconds=1))
    told = report(stale, pod_report(2), policy_fresh=False)
    plan = plan_llmservice(observe_service(report=told))
    assert condition(plan.status, "PolicyFresh") == ("False", "LeaseEnded")
    assert message(plan.status, "PolicyFresh").endswith(": chat-5d-1")
    fresh = plan_llmservice(observe_service(report=report(pod_report(1))))
    assert condition(fresh.status, "PolicyFresh") == ("True", "Leased")


def test_the_loss_of_the_control_plane_leaves_the_service_ready() -> None:
    observed = with_deployment(observe_service(), deployment_status(2))
    plan = plan_llmservice(replace(observed, control_plane_reached=False, report=None))
    assert condition(plan.status, "Ready")[0] == "True"
    assert condition(plan.status, "Registered") == ("Unknown", "ControlPlaneUnreachable")
    assert condition(plan.status, "PolicyFresh")[0] == "Unknown"
    assert plan.requests == ()


def test_a_control_plane_that_refuses_the_operator_is_not_told_as_silent() -> None:
    complaint = "the token is not the operator's"
    observed = observe_service(control_plane_reached=False, control_plane_complaint=complaint)
    plan = plan_llmservice(observed)
    assert condition(plan.status, "Registered") == ("Unknown", "ControlPlaneUnreachable")
    assert complaint in message(plan.status, "Registered")
    assert "does not answer" not in message(plan.status, "Registered")
    silent = plan_llmservice(observe_service(control_plane_reached=False))
    assert "does not answer" in message(silent.status, "Registered")


def test_a_refused_registration_is_said() -> None:
    refusal = Refusal(status_code=403, code="forbidden", message="not the operator")
    plan = plan_llmservice(observe_service(refusals={("RegisterPods", "chat"): refusal}))
    assert condition(plan.status, "Registered") == ("False", "RegistrationRefused")
    assert message(plan.status, "Registered") == "not the operator"


def test_colocation_switched_off_releases_the_service() -> None:
    service = llmservice(colocation={"enabled": False})
    plan = plan_llmservice(observe_service(service, report=report(pod_report(1))))
    assert plan.requests == (ReleaseService(namespace="team", name="chat"),)
    assert condition(plan.status, "Registered") == ("False", "ColocationDisabled")
    assert plan_llmservice(observe_service(service)).requests == ()
