"""Requests and reports as the control plane's JSON (docs/protocol.md), without any client.

A report that lacks a field that is not optional there raises: a control plane of another release
must not be read as one that knows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_never
from urllib.parse import quote

from weir_operator.planning.observed import (
    BatchReport,
    DeliveryReport,
    PodReport,
    ServiceReport,
    SloReport,
)
from weir_operator.planning.types import (
    CancelBatch,
    ControlPlaneRequest,
    ForgetBatch,
    InlineInput,
    PutBatchJob,
    RegisterPods,
    ReleaseService,
)

BATCHJOBS = "/internal/v1/batchjobs"
SERVICES = "/internal/v1/services"

Json = Mapping[str, Any]
_IN_THE_SPEC = {
    "completion_window": "spec.completionWindow",
    "deadline_at": "spec.deadline",
    "endpoint": "spec.endpoint",
    "input": "spec.input",
    "input.inline": "spec.input",  # what a ConfigMap holds goes there too
    "input.uri": "spec.input.uri",
    "metadata": "spec.metadata",
    "output_uri": "spec.output.uri",
    "priority": "spec.priority",
}
_LAST_DAY_S = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


class ReportError(Exception):
    """The control plane's answer is not what docs/protocol.md says: check its version."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One HTTP call. ``missing_is_done``: 404 means that there is nothing left to do."""

    method: str
    path: str
    body: Json | None = None
    missing_is_done: bool = False


def call(request: ControlPlaneRequest) -> Call:
    """The HTTP call of ``request``."""
    match request:
        case PutBatchJob():
            return Call(method="PUT", path=_batch(request.uid), body=_batch_body(request))
        case CancelBatch():
            path = f"{_batch(request.uid)}/cancel"
            return Call(method="POST", path=path, missing_is_done=True)
        case ForgetBatch():
            return Call(method="DELETE", path=_batch(request.uid), missing_is_done=True)
        case RegisterPods():
            path = _service(request.namespace, request.name)
            return Call(method="PUT", path=path, body=_service_body(request))
        case ReleaseService():
            path = _service(request.namespace, request.name)
            return Call(method="DELETE", path=path, missing_is_done=True)
        case _:
            assert_never(request)


def batch_report(told: Json) -> BatchReport:
    """What the control plane says of one BatchJob.

    Raises:
        ReportError: a field is missing or has another type.
    """
    try:
        counts, delivery = told["request_counts"], told["delivery"]
        return BatchReport(
            uid=told["uid"],
            batch_id=told["batch_id"],
            status=told["status"],
            suspended=told["suspended"],
            input_matches=told["input_matches"],
            total_lines=counts["total"],
            completed_lines=counts["completed"],
            failed_lines=counts["failed"],
            created_at=_time(told["created_at"]),
            started_at=_time(told["in_progress_at"]),
            expires_at=_time(told["expires_at"]),
            ended_at=_time(told["ended_at"]),
            deadline_at=_time(told["deadline_at"]),
            eta_at=_time(told["eta_at"]),
            predicted_miss=told["predicted_miss"],
            waiting_reason=told["waiting_reason"],
            waiting_message=told.get("waiting_message"),  # a release before has none
            errors=tuple(_error(item) for item in told["errors"]),
            output_file_id=told["output_file_id"],
            error_file_id=told["error_file_id"],
            output_link=told["output_link"],
            error_link=told["error_link"],
            delivery=DeliveryReport(
                state=delivery["state"],
                output_uri=delivery["output_uri"],
                error_uri=delivery["error_uri"],
                message=delivery["message"] and in_the_spec(delivery["message"]),
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"BatchJob: {type(error).__name__}: {error}") from error


def in_the_spec(complaint: str) -> str:
    """What the control plane says of a field of a BatchJob, with the name that its user gave it."""
    field, colon, why = complaint.partition(": ")
    return f"{_IN_THE_SPEC.get(field, field)}{colon}{why}"


def service_report(told: Json) -> ServiceReport:
    """What the control plane says of one LLMService.

    Raises:
        ReportError: a field is missing or has another type.
    """
    try:
        return ServiceReport(
            model=told["model"],
            service_account=told["service_account"],
            pods=tuple(_pod(item) for item in told["pods"]),
            slo_attainment=told["slo_attainment"],
            policy_fresh=told["policy_fresh"],
            offline_tokens_per_s=told["offline_tokens_per_s"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"LLMService: {type(error).__name__}: {error}") from error


def _pod(told: Json) -> PodReport:
    return PodReport(
        uid=told["uid"],
        name=told["name"],
        state=told["state"],
        policy_expires_at=_time(told["policy_expires_at"]),
        total_kv_blocks=told["total_blocks"],
        offline_kv_threshold_blocks=told["offline_kv_threshold_blocks"],
        step_budget_s=told["step_budget_s"],
        offline_tokens_per_s=told["offline_tokens_per_s"],
        slo=tuple(
            SloReport(
                metric=item["metric"],
                statistic=item["statistic"],
                threshold_s=item["threshold_s"],
                measured_s=item["measured_s"],
                attained=item["attained"],
            )
            for item in told["slo"]
        ),
    )


def _time(at_s: float | None) -> datetime | None:
    """A time of the control plane. What lies after all dates that can be written is the last one.

    Who sets a deadline that never comes may reach past it, and must not silence all other reports.
    """
    return None if at_s is None else datetime.fromtimestamp(min(at_s, _LAST_DAY_S), UTC)


def _error(told: Json) -> str:
    line = told.get("line")
    return in_the_spec(told["message"]) if line is None else f"line {line}: {told['message']}"


def _batch(uid: str) -> str:
    return f"{BATCHJOBS}/{quote(uid, safe='')}"


def _service(namespace: str, name: str) -> str:
    return f"{SERVICES}/{quote(namespace, safe='')}/{quote(name, safe='')}"


def _batch_body(request: PutBatchJob) -> Json:
    given = request.input
    return {
        "namespace": request.namespace,
        "name": request.name,
        "service": request.service,
        "model": request.model,
        "endpoint": request.endpoint,
        "completion_window": request.completion_window,
        "priority": request.priority,
        "suspended": request.suspended,
        "deadline_at": _deadline_s(request.deadline),
        "input": {"inline": given.text} if isinstance(given, InlineInput) else {"uri": given.uri},
        "output_uri": request.output_uri,
        "metadata": dict(request.metadata) or None,
        "batch_id": request.batch_id,
    }


def _deadline_s(deadline: datetime | None) -> float | None:
    """Seconds since 1970, of which the control plane takes none that are not above 0.

    A deadline of then, as of a timestamp that nobody set, has passed: that ends no batch.
    """
    return None if deadline is None else max(1.0, deadline.timestamp())


def _service_body(request: RegisterPods) -> Json:
    return {
        "model": request.model,
        "service_account": request.service_account,
        "pods": [{"uid": pod.uid, "name": pod.name} for pod in request.pods],
    }
