"""What a service's status says of its objectives and of the control plane that judges them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.operator.planning.test_llmservice_status import SLO, pod_report, report, slo
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
from weir_operator.planning.observed import Refusal
from weir_operator.planning.types import RegisterPods, ReleaseService


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


def minutes_of(*measured: float) -> tuple[list[str], list[str]]:
    """What SLOMet says, and all its Events, of so many looks a minute apart."""
    service, said, noted = llmservice(slo=SLO), [], []
    for number, value in enumerate(measured):
        told = report(pod_report(1, slo=(slo(value, value <= 0.1),)))
        now = NOW + timedelta(minutes=number)
        plan = plan_llmservice(observe_service(service, report=told, slo_silence_s=0.0, now=now))
        service = {**service, "status": plan.status or service["status"]}
        said.append(condition(service["status"], "SLOMet")[1])
        noted += [note.reason for note in plan.events if note.reason in {"Attained", "Missed"}]
    return said, noted


def test_an_objective_that_is_held_and_missed_in_turns_sends_few_events() -> None:
    """Batch work fills what it leaves: each minute may end a little above it or a little below."""
    said, noted = minutes_of(*[0.099, 0.101] * 5)
    assert said == ["Attained", *["Missed"] * 9]
    assert noted == ["Attained", "Missed"]


@pytest.mark.parametrize(
    ("measured", "last"),
    [
        ([0.101, 0.05], "Attained"),  # well below it
        ([0.101, *[0.099] * 9], "Missed"),
        ([0.101, *[0.099] * 10], "Attained"),  # ten minutes old
    ],
)
def test_a_miss_ends_where_it_is_well_over_or_old(measured: list[float], last: str) -> None:
    said, _ = minutes_of(*measured)
    assert said[-1] == last


def test_a_miss_that_stands_is_looked_at_when_it_is_old() -> None:
    missed = report(pod_report(1, slo=(slo(0.101, False),)))
    held = report(pod_report(1, slo=(slo(0.099, True),)))
    service = llmservice(slo=SLO)
    first = plan_llmservice(observe_service(service, report=missed, slo_silence_s=0.0))
    told = {**service, "status": first.status}
    later = NOW + timedelta(minutes=1)
    plan = plan_llmservice(observe_service(told, report=held, slo_silence_s=0.0, now=later))
    assert plan.requeue_after_s == 540.0
    eased = {**llmservice(slo=[{**SLO[0], "thresholdSeconds": 0.105}]), "status": first.status}
    plan = plan_llmservice(observe_service(eased, report=held, slo_silence_s=0.0, now=later))
    assert condition(plan.status, "SLOMet") == ("True", "Attained")


@pytest.mark.parametrize("written", ["yesterday", "2026-05-04T12:00:00", None])
def test_a_miss_of_a_time_that_cannot_be_read_does_not_stand(written: str | None) -> None:
    """Somebody else wrote it; the service was planned no more."""
    missed = report(pod_report(1, slo=(slo(0.101, False),)))
    held = report(pod_report(1, slo=(slo(0.099, True),)))
    service = llmservice(slo=SLO)
    status = plan_llmservice(observe_service(service, report=missed, slo_silence_s=0.0)).status
    assert status is not None
    changed = [{**item, "lastTransitionTime": written} for item in status["conditions"]]
    told = {**service, "status": {**status, "conditions": changed}}
    plan = plan_llmservice(observe_service(told, report=held, slo_silence_s=0.0))
    assert condition(plan.status, "SLOMet") == ("True", "Attained")


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
    apart = plan_llmservice(observe_service(report=report(pod_report(1), policy_fresh=False)))
    assert message(apart.status, "PolicyFresh").endswith(": a pod, by the control plane's clock")


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


@pytest.mark.parametrize("status_code", [404, 405, 429])
def test_what_a_proxy_says_of_a_registration_is_no_refusal(status_code: int) -> None:
    refusal = Refusal(status_code=status_code, code="foreign_answer", message="a proxy said no")
    plan = plan_llmservice(observe_service(refusals={("RegisterPods", "chat"): refusal}))
    assert condition(plan.status, "Registered") == ("Unknown", "ControlPlaneUnreachable")
    assert message(plan.status, "Registered").startswith("a proxy said no")


def test_colocation_switched_off_releases_the_service() -> None:
    service = llmservice(colocation={"enabled": False})
    plan = plan_llmservice(observe_service(service, report=report(pod_report(1))))
    assert plan.requests == (ReleaseService(namespace="team", name="chat"),)
    assert condition(plan.status, "Registered") == ("False", "ColocationDisabled")
    assert plan_llmservice(observe_service(service)).requests == ()
