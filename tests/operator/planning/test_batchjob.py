"""The life of a BatchJob, and each way in which it can go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.operator.planning.worlds import (
    NOW,
    apply_job,
    batch,
    batchjob,
    condition,
    message,
    observe_job,
)
from weir_operator.planning.batchjob import plan_batchjob
from weir_operator.planning.conditions import rfc3339
from weir_operator.planning.kinds import FINALIZER
from weir_operator.planning.observed import BatchReport, DeliveryReport, ObservedBatchJob, Refusal
from weir_operator.planning.types import CancelBatch, InlineInput, PutBatchJob, UriInput

LINES = '{"custom_id": "1"}\n'
CONFIG_MAP = {"configMapKeyRef": {"name": "lines", "key": "batch.jsonl"}}


def running(known: Mapping[str, object] | None = None, /, **spec: object) -> dict[str, Any]:
    """A BatchJob whose batch exists."""
    job = batchjob(**spec)
    job["metadata"]["finalizers"] = [FINALIZER]
    job["status"] = {"batchID": "batch_1", "model": "chat", **(known or {})}
    return job


def submitted(observed: ObservedBatchJob) -> PutBatchJob:
    [request] = plan_batchjob(observed).requests
    assert isinstance(request, PutBatchJob)
    return request


def ended(seconds_ago: float, **spec: object) -> ObservedBatchJob:
    job = running(None, **spec)
    report = batch("completed", completed_lines=300, ended_at=NOW - timedelta(seconds=seconds_ago))
    observed = observe_job(job, report=report)
    return apply_job(observed, plan_batchjob(observed))


def test_a_new_job_is_submitted_under_its_uid_and_held_by_the_finalizer() -> None:
    job = batchjob(priority=5, output={"uri": "s3://b/out/"}, metadata={"team": "a"})
    plan = plan_batchjob(observe_job(job))
    assert plan.finalizer is True
    request = submitted(observe_job(job))
    assert (request.uid, request.namespace, request.name) == ("job-1", "team", "night")
    assert (request.service, request.model) == ("chat", "chat")
    assert request.input == InlineInput(text='{"custom_id": "1"}\n')
    assert (request.priority, request.output_uri) == (5, "s3://b/out/")
    assert request.metadata == {"team": "a"}
    assert request.batch_id is None
    assert condition(plan.status, "Accepted") == ("False", "Submitting")


def test_the_model_is_the_services_served_name() -> None:
    service = {
        "metadata": {"name": "chat"},
        "spec": {"model": {"uri": "/m", "servedName": "llama-3"}},
    }
    assert submitted(observe_job(service=service)).model == "llama-3"


def test_progress_is_shown_and_the_batch_is_known_by_its_id() -> None:
    plan = plan_batchjob(observe_job(running(), report=batch(failed_lines=3)))
    assert plan.status is not None
    assert plan.status["batchID"] == "batch_1"
    assert plan.status["state"] == "in_progress"
    assert plan.status["counts"] == {"total": 300, "completed": 30, "failed": 3}
    assert plan.status["progressPercent"] == 11
    assert plan.status["eta"] == rfc3339(NOW + timedelta(hours=1))
    assert condition(plan.status, "Accepted") == ("True", "Accepted")
    assert condition(plan.status, "Complete") == ("False", "Unfinished")
    assert condition(plan.status, "AtRisk") == ("False", "OnTime")
    assert submitted(observe_job(running(), report=batch())).batch_id == "batch_1"


def test_input_from_a_config_map() -> None:
    job = batchjob(input=CONFIG_MAP)
    there = {"data": {"batch.jsonl": "{}\n"}}
    assert submitted(observe_job(job, config_map=there)).input == InlineInput(text="{}\n")
    by_uri = batchjob(input={"uri": "s3://b/in.jsonl"})
    assert submitted(observe_job(by_uri)).input == UriInput(uri="s3://b/in.jsonl")


@pytest.mark.parametrize("config_map", [None, {"data": {"other": "x"}}, {"data": None}])
def test_a_config_map_that_is_not_there_is_waited_for(config_map: dict[str, Any] | None) -> None:
    plan = plan_batchjob(observe_job(batchjob(input=CONFIG_MAP), config_map=config_map))
    assert plan.requests == ()
    assert plan.finalizer is None
    assert condition(plan.status, "Accepted") == ("False", "ConfigMapNotFound")
    assert "lines" in message(plan.status, "Accepted")
    assert plan.requeue_after_s is not None


@pytest.mark.parametrize(
    "config_map",
    [{"data": {"batch.jsonl": "x" * (1 << 20) + "x"}}, {"binaryData": {"batch.jsonl": "AA=="}}],
)
def test_a_config_map_that_cannot_be_sent_fails_the_job(config_map: dict[str, Any]) -> None:
    plan = plan_batchjob(observe_job(batchjob(input=CONFIG_MAP), config_map=config_map))
    assert condition(plan.status, "Failed") == ("True", "InputTooLarge")
    assert condition(plan.status, "Accepted") == ("False", "Refused")


def test_a_config_map_deleted_after_acceptance_does_not_hinder_suspension() -> None:
    job = running(input=CONFIG_MAP, suspend=True)
    request = submitted(observe_job(job, report=batch()))
    assert request.suspended
    assert request.batch_id == "batch_1"


@pytest.mark.parametrize(
    "config_map",
    [
        None,
        {"data": {"other": "x"}},
        {"binaryData": {"batch.jsonl": "AA=="}},
        {"data": {"batch.jsonl": LINES}},
    ],
    ids=["gone", "without the key", "not text any more", "still there"],
)
@pytest.mark.parametrize("suspend", [False, True])
def test_a_job_suspended_from_birth_can_be_changed_without_its_config_map(
    config_map: dict[str, Any] | None, suspend: bool
) -> None:
    """The control plane has the lines: it is told what is wished of them."""
    deadline = rfc3339(NOW + timedelta(hours=3))
    job = batchjob(input=CONFIG_MAP, suspend=suspend, priority=7, deadline=deadline)
    report = batch("suspended", batch_id=None, suspended=True, eta_at=None)
    observed = observe_job(job, config_map=config_map, report=report)
    request = submitted(observed)
    assert (request.suspended, request.priority) == (suspend, 7)
    assert request.deadline == NOW + timedelta(hours=3)
    assert isinstance(request.input, InlineInput)
    assert LINES not in request.input.text  # it is not sent again and again
    # Were the job lost, an empty batch must not be made in its place: without an id it would be.
    assert request.batch_id is not None
    plan = plan_batchjob(observed)
    assert plan.finalizer is (None if suspend else True)
    assert condition(plan.status, "Accepted") == ("True", "Accepted")
    for _ in range(2):
        observed = apply_job(observed, plan_batchjob(observed))
    told = condition(observed.job["status"], "Suspended")
    assert told[0] == ("True" if suspend else "False")


@pytest.mark.parametrize(
    ("waiting_reason", "told"),
    [
        ("QuotaExceeded", ("False", "QuotaExceeded")),
        ("InputUnavailable", ("False", "InputUnavailable")),
        ("InternalError", ("False", "InputUnavailable")),
        (None, ("True", "Accepted")),
    ],
)
def test_what_keeps_a_batch_from_being_made_is_said(
    waiting_reason: str | None, told: tuple[str, str]
) -> None:
    report = batch("pending", batch_id=None, eta_at=None, waiting_reason=waiting_reason)
    plan = plan_batchjob(observe_job(report=report))
    assert condition(plan.status, "Accepted") == told
    if told[1] == "InputUnavailable":
        assert f"now: {waiting_reason}" in message(plan.status, "Accepted")
        why = replace(report, waiting_message="the server answers 503")
        plan = plan_batchjob(observe_job(report=why))
        assert "now: the server answers 503" in message(plan.status, "Accepted")
    made = batch(eta_at=None, waiting_reason="NoMatchingModel")
    assert condition(plan_batchjob(observe_job(running(), report=made)).status, "Accepted") == (
        "True",
        "Accepted",
    )


def test_a_missing_service_is_waited_for_until_acceptance_and_then_not_needed() -> None:
    plan = plan_batchjob(observe_job(service=None))
    assert plan.requests == ()
    assert condition(plan.status, "Accepted") == ("False", "ServiceNotFound")
    assert "create it" in message(plan.status, "Accepted")
    assert submitted(observe_job(running(), service=None, report=batch())).model == "chat"


# --- suspension ------------------------------------------------------------------------------


def test_suspended_from_birth_nothing_is_held_and_nothing_runs() -> None:
    observed = observe_job(batchjob(suspend=True))
    plan = plan_batchjob(observed)
    assert submitted(observed).suspended
    assert plan.finalizer is None
    assert condition(plan.status, "Suspended") == ("True", "Suspended")
    after = plan_batchjob(apply_job(observed, plan))
    assert after.status is not None
    assert after.status["state"] == "Suspended"
    assert "batchID" not in after.status


def test_suspension_and_resumption_show_what_holds_not_what_is_wished() -> None:
    asked = plan_batchjob(observe_job(running(suspend=True), report=batch()))
    assert condition(asked.status, "Suspended") == ("False", "Suspending")
    held = plan_batchjob(observe_job(running(suspend=True), report=batch(suspended=True)))
    assert condition(held.status, "Suspended") == ("True", "Suspended")
    assert held.status is not None
    assert held.status["state"] == "Suspended"
    back = observe_job(running(), report=batch(suspended=True))
    assert condition(plan_batchjob(back).status, "Suspended") == ("True", "Resuming")
    assert not submitted(back).suspended


def test_a_suspension_that_is_refused_is_not_said_to_be_on_its_way() -> None:
    refusal = Refusal(status_code=400, code="invalid_value", message="completion_window: no")
    for wish, held in ((True, False), (False, True)):
        observed = observe_job(running(suspend=wish), report=batch(suspended=held), refusal=refusal)
        plan = plan_batchjob(observed)
        assert "completion_window: no" in message(plan.status, "Suspended")
        assert condition(plan.status, "Failed")[0] == "False"


def test_resuming_a_job_suspended_from_birth_takes_the_finalizer_first() -> None:
    report = BatchReport(uid="job-1", batch_id=None, status="suspended", suspended=True)
    plan = plan_batchjob(observe_job(batchjob(), report=report))
    assert plan.finalizer is True
    assert len(plan.requests) == 1


# --- ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "complete", "failed"),
    [
        (batch("completed", completed_lines=300), ("True", "Completed"), "False"),
        (
            batch("completed", completed_lines=299, failed_lines=1),
            ("True", "CompletedWithErrors"),
            "False",
        ),
        (batch("failed", errors=("line 2: not JSON",)), ("False", "DidNotComplete"), "True"),
        (batch("expired"), ("False", "DidNotComplete"), "True"),
        (batch("cancelled"), ("False", "DidNotComplete"), "True"),
    ],
)
def test_each_end_of_a_batch(report: BatchReport, complete: tuple[str, str], failed: str) -> None:
    report = replace(report, ended_at=NOW - timedelta(seconds=3), output_link="/links/o")
    plan = plan_batchjob(observe_job(running(), report=report))
    assert condition(plan.status, "Complete") == complete
    assert condition(plan.status, "Failed")[0] == failed
    assert condition(plan.status, "AtRisk") == ("False", "Ended")
    assert plan.status is not None
    assert plan.status["completionTime"] == rfc3339(NOW - timedelta(seconds=3))
    assert plan.status["outputURI"] == "/links/o"
    assert "eta" not in plan.status
    assert plan.requests == ()
    assert plan.finalizer is False


def test_content_errors_are_named() -> None:
    report = batch("failed", errors=("line 2: not JSON", "line 9: no custom_id"))
    plan = plan_batchjob(observe_job(running(), report=report))
    assert condition(plan.status, "Failed") == ("True", "InvalidInput")
    assert message(plan.status, "Failed") == "line 2: not JSON; line 9: no custom_id"


def test_results_copied_to_the_users_place_are_shown_there() -> None:
    delivery = DeliveryReport(state="done", output_uri="s3://b/out/output.jsonl")
    report = batch("completed", completed_lines=300, delivery=delivery, output_link="/links/o")
    plan = plan_batchjob(observe_job(running(), report=report))
    assert plan.status is not None
    assert plan.status["outputURI"] == "s3://b/out/output.jsonl"
    failed = replace(report, delivery=DeliveryReport(state="failed", message="no such bucket"))
    plan = plan_batchjob(observe_job(running(), report=failed))
    assert "no such bucket" in message(plan.status, "Complete")


def test_a_batch_that_the_control_plane_lost_is_never_made_anew() -> None:
    plan = plan_batchjob(observe_job(running()))
    assert plan.requests == ()
    assert condition(plan.status, "Failed") == ("True", "BatchNotFound")
    assert "batch_1" in message(plan.status, "Failed")
    assert plan.finalizer is False


def test_an_ended_job_stays_as_it_is_when_the_control_plane_forgets_it() -> None:
    observed = replace(ended(10), report=None)
    plan = plan_batchjob(observed)
    assert (plan.status, plan.requests, plan.events, plan.finalizer) == (None, (), (), None)


def test_renewed_links_of_an_ended_job_are_taken_over() -> None:
    observed = ended(10)
    assert observed.report is not None
    renewed = replace(observed, report=replace(observed.report, output_link="/links/new"))
    plan = plan_batchjob(renewed)
    assert plan.status is not None
    assert plan.status["outputURI"] == "/links/new"


def test_an_ended_job_is_deleted_after_its_time_to_live() -> None:
    early = plan_batchjob(ended(10, ttlSecondsAfterFinished=60))
    assert early.removals == ()
    assert early.requeue_after_s == 50
    late = plan_batchjob(ended(61, ttlSecondsAfterFinished=60))
    [ref] = late.removals
    assert (ref.kind, ref.name, ref.uid) == ("BatchJob", "night", "job-1")
    assert plan_batchjob(ended(10_000)).removals == ()


def test_an_end_in_the_farthest_future_that_somebody_wrote_is_waited_for() -> None:
    observed = ended(10, ttlSecondsAfterFinished=60)
    status = observed.job["status"] | {"completionTime": "9999-12-31T23:59:59Z"}
    plan = plan_batchjob(replace(observed, job={**observed.job, "status": status}))
    assert plan.removals == ()
    assert plan.requeue_after_s is not None
    assert plan.requeue_after_s > 0


# --- refusals --------------------------------------------------------------------------------


def test_a_final_refusal_fails_the_job_and_others_are_asked_again() -> None:
    def refused(status_code: int, code: str) -> ObservedBatchJob:
        refusal = Refusal(status_code=status_code, code=code, message="output.uri: no")
        return observe_job(refusal=refusal)

    final = plan_batchjob(refused(400, "invalid_value"))
    assert condition(final.status, "Failed") == ("True", "Refused")
    assert condition(final.status, "Accepted") == ("False", "Refused")
    assert message(final.status, "Failed") == "output.uri: no"
    assert final.requests == ()
    for status_code, code, told in (
        (403, "namespace_not_bound", ("False", "NamespaceNotBound")),
        (429, "x", ("False", "QuotaExceeded")),
        # Not the control plane's: it never saw the input.
        (403, "foreign_answer", ("Unknown", "ControlPlaneUnreachable")),
        (413, "foreign_answer", ("Unknown", "ControlPlaneUnreachable")),
        (429, "foreign_answer", ("Unknown", "ControlPlaneUnreachable")),
        (403, "insufficient_scope", ("Unknown", "ControlPlaneUnreachable")),
    ):
        plan = plan_batchjob(refused(status_code, code))
        assert condition(plan.status, "Accepted") == told
        assert condition(plan.status, "Failed")[0] == "False"
        assert len(plan.requests) == 1


def test_a_control_plane_that_does_not_answer_is_waited_for() -> None:
    plan = plan_batchjob(observe_job(control_plane_reached=False))
    assert plan.requests == ()
    assert condition(plan.status, "Accepted") == ("Unknown", "ControlPlaneUnreachable")
    assert plan.requeue_after_s is not None
    refused = observe_job(control_plane_reached=False, control_plane_complaint="unknown token")
    assert "unknown token" in message(plan_batchjob(refused).status, "Accepted")
    known = running(
        {"counts": {"total": 300, "completed": 30, "failed": 0}, "state": "in_progress"}
    )
    plan = plan_batchjob(observe_job(known, control_plane_reached=False))
    assert plan.status is not None
    assert plan.status["counts"]["completed"] == 30
    assert plan.status["state"] == "in_progress"
    assert condition(plan.status, "Failed")[0] == "False"
    assert plan.finalizer is None


def test_a_lost_answer_keeps_the_finalizer_until_the_control_plane_tells() -> None:
    job = batchjob()
    job["metadata"]["finalizers"] = [FINALIZER]
    assert plan_batchjob(observe_job(job, control_plane_reached=False)).finalizer is None
    assert plan_batchjob(observe_job(job, service=None)).finalizer is False


# --- deletion, and whose job it is -----------------------------------------------------------


def deleted(seconds_ago: float, **given: object) -> ObservedBatchJob:
    job = running()
    job["metadata"]["deletionTimestamp"] = rfc3339(NOW - timedelta(seconds=seconds_ago))
    return observe_job(job, **given)


def test_deletion_cancels_then_lets_go() -> None:
    plan = plan_batchjob(deleted(1, report=batch()))
    assert plan.requests == (CancelBatch(uid="job-1"),)
    assert plan.finalizer is None
    assert plan.status is None
    for status in ("cancelling", "cancelled", "completed", "finalizing", "delivering"):
        assert plan_batchjob(deleted(1, report=batch(status))).finalizer is False
    assert plan_batchjob(deleted(1)).finalizer is False


def test_deletion_does_not_hang_on_a_control_plane_that_is_gone() -> None:
    waits = plan_batchjob(deleted(100, control_plane_reached=False))
    assert (waits.finalizer, waits.requests) == (None, ())
    assert waits.requeue_after_s is not None
    assert plan_batchjob(deleted(120, control_plane_reached=False)).finalizer is False
    assert plan_batchjob(deleted(120, report=batch())).finalizer is False


def test_a_job_of_another_controller_is_left_alone() -> None:
    other = plan_batchjob(observe_job(batchjob(managedBy="kueue.x-k8s.io/multikueue")))
    assert other == type(other)()
    copied = batchjob(managedBy="kueue.x-k8s.io/multikueue")
    copied["metadata"]["finalizers"] = [FINALIZER]
    assert plan_batchjob(observe_job(copied)).finalizer is None
    copied["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    assert plan_batchjob(observe_job(copied)).finalizer is False  # or it would never go
    ours = plan_batchjob(observe_job(batchjob(managedBy="weir.dev/operator")))
    assert len(ours.requests) == 1


def test_a_stored_spec_that_cannot_be_read_is_said_until_it_is_corrected() -> None:
    """An earlier CRD let deadlines in that only the API server can read."""
    unreadable = {"deadline": "2030-01-01T00:00:00+99:99"}
    observed = observe_job(batchjob(**unreadable))
    plan = plan_batchjob(observed)
    assert condition(plan.status, "Accepted") == ("False", "InvalidSpec")
    assert message(plan.status, "Accepted").startswith("spec.deadline: ")
    assert [(note.type, note.reason) for note in plan.events] == [("Warning", "InvalidSpec")]
    assert (plan.requests, plan.finalizer) == ((), None)
    again = apply_job(observed, plan)
    assert plan_batchjob(again) == type(plan)()
    spec = {**again.job["spec"], "deadline": rfc3339(NOW + timedelta(hours=1))}
    corrected = plan_batchjob(replace(again, job={**again.job, "spec": spec}))
    assert len(corrected.requests) == 1
    assert condition(corrected.status, "Accepted") == ("False", "Submitting")


def test_of_a_job_whose_spec_cannot_be_read_its_batch_and_its_end_stay() -> None:
    live = observe_job(running(), report=batch())
    told = apply_job(live, plan_batchjob(live))
    spec = {**told.job["spec"], "deadline": "2030-01-01T00:00:00+99:99"}
    plan = plan_batchjob(replace(told, job={**told.job, "spec": spec}))
    assert plan.status is not None
    assert plan.status["batchID"] == "batch_1"
    assert condition(plan.status, "Failed") == ("False", "NotFailed")
    assert plan.finalizer is None
    over = ended(10)
    spec = {**over.job["spec"], "deadline": "2030-01-01T00:00:00+99:99"}
    plan = plan_batchjob(replace(over, job={**over.job, "spec": spec}))
    assert plan == type(plan)()


@pytest.mark.parametrize(
    ("value", "paused"), [("true", True), ("True", True), ("", True), ("false", False)]
)
def test_a_paused_job_is_left_alone(value: str, *, paused: bool) -> None:
    job = running()
    job["metadata"]["annotations"] = {"weir.dev/paused": value}
    plan = plan_batchjob(observe_job(job, report=batch()))
    assert (plan == type(plan)()) is paused
