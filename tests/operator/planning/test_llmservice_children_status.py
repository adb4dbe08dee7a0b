"""What a service's status says of its children: refused, being deleted, of somebody else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.operator.planning.worlds import (
    apply_service,
    condition,
    deployment_status,
    llmservice,
    merge,
    message,
    observe_service,
    with_deployment,
)
from weir_operator.planning.llmservice import plan_llmservice
from weir_operator.planning.observed import Refusal


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


def test_no_pod_is_planned_to_run_under_an_account_of_somebody_else() -> None:
    """Whoever may make LLMServices alone had the token of any account of the namespace."""
    theirs = {"weir.dev/llmservice": "chat", "app.kubernetes.io/managed-by": "Helm"}
    account = {"kind": "ServiceAccount", "metadata": {"name": "chat", "uid": "x", "labels": theirs}}
    observed = with_deployment(observe_service(), deployment_status(2))
    for others in ({}, dict(observed.children)):  # nothing made yet; all made before
        children = {**others, ("ServiceAccount", "chat"): account}
        plan = plan_llmservice(replace(observed, children=children))
        assert condition(plan.status, "Configured") == ("False", "NameTaken")
        assert "ServiceAccount chat" in message(plan.status, "Configured")
        kinds = {child["kind"] for child in plan.children}
        assert "Deployment" not in kinds
        assert "ServiceAccount" not in kinds
        assert {"Service", "PodDisruptionBudget", "NetworkPolicy"} <= kinds
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
