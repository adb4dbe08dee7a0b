"""Requests and reports as JSON: what docs/protocol.md says, and nothing silently misread."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args

import pytest

from tests.operator.planning.worlds import NOW, batchjob, condition, observe_job
from weir_controlplane.batchjobs.schemas import PutBatchJob as TheirPut
from weir_controlplane.llmservices.schemas import PutService as TheirService
from weir_operator.api.batchjob import BatchJob
from weir_operator.planning.batchjob import plan_batchjob
from weir_operator.planning.types import (
    CancelBatch,
    ForgetBatch,
    PodIdentity,
    RegisterPods,
    ReleaseService,
)
from weir_operator.planning.wire import (
    ReportError,
    batch_report,
    call,
    in_the_spec,
    service_report,
)

NEVER = "9999-12-31T23:59:59.9999999Z"  # what .NET writes for no end
JOB: dict[str, Any] = {
    "uid": "job-1", "batch_id": "batch_1", "status": "in_progress", "suspended": False,
    "input_matches": True, "request_counts": {"total": 3, "completed": 1, "failed": 1},
    "created_at": 1.0, "in_progress_at": None, "expires_at": 2.0, "ended_at": None,
    "deadline_at": None, "eta_at": NOW.timestamp(), "predicted_miss": True,
    "waiting_reason": None, "waiting_message": None,
    "errors": [{"code": "x", "line": 2, "message": "bad", "param": None}],
    "output_file_id": None, "error_file_id": None, "output_link": None, "error_link": None,
    "delivery": {"state": "none", "output_uri": None, "error_uri": None, "message": None},
}  # fmt: skip


def test_a_put_is_what_the_control_plane_reads() -> None:
    deadline = "2026-05-05T00:00:00Z"
    [request] = plan_batchjob(observe_job(batchjob(deadline=deadline, priority=3))).requests
    made = call(request)
    assert (made.method, made.path) == ("PUT", "/internal/v1/batchjobs/job-1")
    assert made.body is not None
    read = TheirPut.model_validate(dict(made.body))
    assert (read.namespace, read.service, read.model, read.priority) == ("team", "chat", "chat", 3)
    assert read.input.inline == '{"custom_id": "1"}\n'
    assert read.deadline_at == 1_777_939_200.0
    assert read.metadata is None
    by_uri = batchjob(input={"uri": "s3://b/in.jsonl"})
    [request] = plan_batchjob(observe_job(by_uri)).requests
    assert (call(request).body or {})["input"] == {"uri": "s3://b/in.jsonl"}


@pytest.mark.parametrize("deadline", ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00+10:00"])
def test_a_deadline_at_the_beginning_of_time_has_passed_and_is_taken(deadline: str) -> None:
    """The control plane refused it, for good: a batch whose deadline nobody had set failed."""
    plan = plan_batchjob(observe_job(batchjob(deadline=deadline)))
    [request] = plan.requests
    assert TheirPut.model_validate(dict(call(request).body or {})).deadline_at == 1.0
    assert condition(plan.status, "AtRisk") == ("True", "DeadlinePassed")


def test_pods_are_registered_as_the_control_plane_reads_them() -> None:
    pods = (PodIdentity(uid="u", name="chat-5d-1"),)
    request = RegisterPods(
        namespace="team", name="chat", model="chat", service_account="chat", pods=pods
    )
    made = call(request)
    assert (made.method, made.path) == ("PUT", "/internal/v1/services/team/chat")
    read = TheirService.model_validate(dict(made.body or {}))
    assert [(pod.uid, pod.name) for pod in read.pods] == [("u", "chat-5d-1")]


def test_what_is_gone_already_is_done() -> None:
    cancel, forget = call(CancelBatch(uid="a")), call(ForgetBatch(uid="a"))
    release = call(ReleaseService(namespace="team", name="chat"))
    assert (cancel.method, cancel.path) == ("POST", "/internal/v1/batchjobs/a/cancel")
    assert (forget.method, forget.path) == ("DELETE", "/internal/v1/batchjobs/a")
    assert (release.method, release.path) == ("DELETE", "/internal/v1/services/team/chat")
    assert all(made.missing_is_done for made in (cancel, forget, release))


def test_a_report_is_read() -> None:
    report = batch_report(JOB)
    assert report.eta_at == NOW
    assert (report.total_lines, report.completed_lines, report.failed_lines) == (3, 1, 1)
    assert report.errors == ("line 2: bad",)
    assert report.predicted_miss


@pytest.mark.parametrize(
    "field", ["completion_window", "deadline_at", "endpoint", "input", "input.inline", "input.uri",
              "metadata", "output_uri", "priority"],
)  # fmt: skip
def test_what_is_wrong_with_a_batchjob_has_the_names_of_its_spec(field: str) -> None:
    told = {
        **JOB,
        "errors": [{"code": "x", "line": None, "message": f"{field}: no: why", "param": None}],
        "delivery": {**JOB["delivery"], "message": f"{field}: no: why"},
    }
    report = batch_report(told)
    [error] = report.errors
    assert error == report.delivery.message
    place, why = error.split(": ", 1)
    assert why == "no: why"
    model: Any = BatchJob
    for name in place.split("."):
        by_alias = {given.alias: given.annotation for given in model.model_fields.values()}
        assert name in by_alias
        model = get_args(by_alias[name])[0] if get_args(by_alias[name]) else by_alias[name]
    assert in_the_spec(f"line 3 has no {field}") == f"line 3 has no {field}"


@pytest.mark.parametrize("at_s", [253_402_300_800.0, 1e19, 1e300])
def test_times_after_the_last_year_are_its_last_day(at_s: float) -> None:
    report = batch_report({**JOB, "deadline_at": at_s, "eta_at": at_s})
    assert report.deadline_at == report.eta_at == datetime(9999, 12, 31, tzinfo=UTC)
    plan = plan_batchjob(observe_job(batchjob(deadline=NEVER), report=report))
    assert plan.status is not None
    assert plan.status["eta"] == "9999-12-31T00:00:00Z"


@pytest.mark.parametrize("missing", ["status", "request_counts", "delivery", "eta_at"])
def test_a_report_of_another_release_is_refused(missing: str) -> None:
    with pytest.raises(ReportError, match=missing):
        batch_report({name: value for name, value in JOB.items() if name != missing})


def test_a_service_report_is_read_or_refused() -> None:
    pod = {
        "uid": "u", "name": "p", "state": "serving", "policy_expires_at": NOW.timestamp(),
        "total_blocks": 10, "offline_kv_threshold_blocks": 7, "step_budget_s": 0.1,
        "offline_tokens_per_s": 5.0,
        "slo": [{"metric": "tbt", "statistic": "p99", "threshold_s": 0.1, "measured_s": None,
                 "attained": None}],
    }  # fmt: skip
    told = {
        "model": "m", "service_account": "chat", "pods": [pod], "slo_attainment": None,
        "policy_fresh": True, "offline_tokens_per_s": 5.0,
    }  # fmt: skip
    report = service_report(told)
    assert report.pods[0].policy_expires_at == NOW
    assert report.pods[0].slo[0].threshold_s == 0.1
    with pytest.raises(ReportError, match="pods"):
        service_report({name: value for name, value in told.items() if name != "pods"})
