"""The conditions of a BatchJob: what the control plane says, and what keeps it from being asked."""

from __future__ import annotations

from datetime import datetime

from weir_operator.planning.conditions import Finding, conditions_of, rfc3339, stands_s
from weir_operator.planning.job_context import ENDED, JobContext
from weir_operator.planning.job_reasons import BatchJobReasons as Reasons
from weir_operator.planning.observed import BatchReport, ObservedBatchJob, Refusal
from weir_operator.planning.reasons import Reason
from weir_operator.planning.service_telemetry import unreached

BAD_REQUEST, CONFLICT, TOO_MANY = 400, 409, 429
NAMESPACE_NOT_BOUND = "namespace_not_bound"
FINAL_REFUSALS = frozenset({BAD_REQUEST, CONFLICT, 413, 422})
"""Statuses that say that the object itself cannot be; its spec cannot be changed."""
RISK_STANDS_S = 600.0
"""How long a predicted miss stands while the batch is hardly in time by forecast."""
RISK_ENDS_AT = 0.1
"""The share of the time left that a forecast leaves free where it ends a predicted miss at once. Of
work that just about fits, it crosses the deadline in turns, with one commit after another."""


def findings(context: JobContext, obstacle: Finding | None) -> tuple[Finding, ...]:
    """Every condition. ``obstacle``: why the control plane cannot be asked."""
    failed = _failed(context, obstacle)
    complete = _complete(context.observed.report, failed)
    ended = _is_true(complete) or _is_true(failed)
    return (
        _accepted(context, obstacle, failed),
        complete,
        failed,
        _suspended(context, ended=ended),
        _at_risk(context, ended=ended),
    )


def is_final(refusal: Refusal) -> bool:
    """Whether asking again is in vain."""
    return refusal.status_code in FINAL_REFUSALS and not refusal.unanswered


def _failed(context: JobContext, obstacle: Finding | None) -> Finding:
    report, refusal = context.observed.report, context.observed.refusal
    if report is not None:
        return _failed_by_report(report)
    if context.status.batch_id is not None and context.observed.control_plane_reached:
        return Finding(
            reason=Reasons.BATCH_NOT_FOUND,
            message=f"the control plane does not know batch {context.status.batch_id} any more: "
            "make another BatchJob",
        )
    if obstacle is not None and obstacle.reason.condition == "Failed":
        return obstacle
    if refusal is not None and is_final(refusal) and context.status.batch_id is None:
        return Finding(reason=Reasons.REFUSED, message=refusal.message)
    return Finding(reason=Reasons.NOT_FAILED, message="nothing has ended the batch early")


def _failed_by_report(report: BatchReport) -> Finding:
    if report.status == "failed":
        first = "; ".join(report.errors) or "the control plane gives no reason"
        return Finding(reason=Reasons.INVALID_INPUT, message=first)
    if report.status == "expired":
        return Finding(
            reason=Reasons.EXPIRED,
            message=f"completionWindow ended with {_left(report)} lines left: what was finished "
            "is kept",
        )
    if report.status == "cancelled":
        return Finding(
            reason=Reasons.CANCELLED, message="the batch was cancelled; what was finished is kept"
        )
    return Finding(reason=Reasons.NOT_FAILED, message="nothing has ended the batch early")


def _complete(report: BatchReport | None, failed: Finding) -> Finding:
    if _is_true(failed):
        return Finding(
            reason=Reasons.NEVER_COMPLETE, message="the batch has ended otherwise: see Failed"
        )
    if report is None or report.status != "completed":
        return Finding(reason=Reasons.NOT_COMPLETE, message="the batch has not ended")
    undelivered = (
        f"; the copy to output.uri failed: {report.delivery.message}"
        if report.delivery.state == "failed"
        else ""
    )
    if report.failed_lines:
        return Finding(
            reason=Reasons.COMPLETED_WITH_ERRORS,
            message=f"{report.completed_lines} of {report.total_lines} lines have an answer, "
            f"{report.failed_lines} an error of their own{undelivered}",
        )
    return Finding(
        reason=Reasons.COMPLETED, message=f"{report.total_lines} lines have an answer{undelivered}"
    )


def _accepted(context: JobContext, obstacle: Finding | None, failed: Finding) -> Finding:
    observed = context.observed
    if observed.report is not None or context.status.batch_id is not None:
        unlike = observed.report is not None and not observed.report.input_matches
        return _waits_for(observed.report) or Finding(
            reason=Reasons.ACCEPTED,
            message="the control plane has another input of this BatchJob: the first one counts"
            if unlike and context.spec.input.uri is not None  # text is not sent again
            else "the control plane has the input",
        )
    if failed.reason in {Reasons.REFUSED, Reasons.INPUT_TOO_LARGE}:
        return Finding(reason=Reasons.NOT_ACCEPTED, message=failed.message)
    return _held_up(observed, obstacle) or Finding(
        reason=Reasons.SUBMITTING, message="the control plane is being asked"
    )


def _held_up(observed: ObservedBatchJob, obstacle: Finding | None) -> Finding | None:
    """What keeps the control plane from being asked, or from taking the batch for now."""
    if not observed.control_plane_reached:
        return Finding(reason=Reasons.UNREACHABLE, message=f"{unreached(observed)}; asked again")
    if observed.forbidden is not None:
        return Finding(
            reason=Reasons.FORBIDDEN,
            message="the operator may not do it, give its account back its roles (helm upgrade); "
            f"tried again: {observed.forbidden}",
        )
    if obstacle is not None:
        return obstacle
    if observed.refusal is None:
        return None
    return Finding(
        reason=_not_yet(observed.refusal), message=f"{observed.refusal.message}; asked again"
    )


def _waits_for(report: BatchReport | None) -> Finding | None:
    """What keeps the control plane from making the batch; None: nothing, as far as is known."""
    if report is None or report.batch_id is not None or report.waiting_reason is None:
        return None
    if report.waiting_reason == Reasons.QUOTA_EXCEEDED.name:
        return Finding(
            reason=Reasons.QUOTA_EXCEEDED,
            message="the tenant's quota is used up: the batch is made when there is room",
        )
    why = report.waiting_message or report.waiting_reason
    return Finding(
        reason=Reasons.INPUT_UNAVAILABLE,
        message=f"the input cannot be taken in now: {why}; tried again, and the control plane's "
        "log has each attempt, with the BatchJob's uid",
    )


def _not_yet(refusal: Refusal) -> Reason:
    if refusal.status_code == TOO_MANY and not refusal.unanswered:
        return Reasons.QUOTA_EXCEEDED
    bound = refusal.code != NAMESPACE_NOT_BOUND
    return Reasons.UNREACHABLE if bound else Reasons.NAMESPACE_NOT_BOUND


def _suspended(context: JobContext, *, ended: bool) -> Finding:
    if ended:
        return Finding(reason=Reasons.NOT_SUSPENDED, message="the batch has ended")
    report, wanted = context.observed.report, context.spec.suspend
    # Before the control plane knows the job nothing can run: the wish is the state.
    now = wanted if report is None else report.suspended
    if wanted and now:
        return Finding(reason=Reasons.SUSPENDED, message="set spec.suspend to false to resume")
    refusal = context.observed.refusal
    told = None if refusal is None else f"the control plane did not take it: {refusal.message}"
    if wanted:
        message = told or "what is running is being handed back"
        return Finding(reason=Reasons.SUSPENDING, message=message)
    if now:
        message = told or "the control plane is being told"
        return Finding(reason=Reasons.RESUMING, message=message)
    return Finding(reason=Reasons.NOT_SUSPENDED, message="spec.suspend is false")


def _at_risk(context: JobContext, *, ended: bool) -> Finding:
    report, now = context.observed.report, context.observed.now
    if ended:
        return Finding(reason=Reasons.RISK_OVER, message="the batch has ended")
    deadline = context.spec.deadline
    if deadline is not None and deadline <= now:
        return Finding(
            reason=Reasons.DEADLINE_PASSED,
            message=f"the results were needed at {rfc3339(deadline)}",
        )
    if report is not None and (report.predicted_miss or risk_stands_s(context) is not None):
        return _predicted_miss(deadline or report.expires_at)
    if report is None or report.eta_at is None:
        told = None if report is None else report.waiting_reason
        why = told or "no forecast yet"
        return Finding(reason=Reasons.NO_FORECAST, message=why)
    return Finding(reason=Reasons.ON_TIME, message="by forecast the batch ends in time")


def _predicted_miss(by: datetime | None) -> Finding:
    when = "in time" if by is None else f"by {rfc3339(by)}"
    return Finding(
        reason=Reasons.PREDICTED_MISS, message=f"by forecast the batch does not end {when}"
    )


def risk_stands_s(context: JobContext) -> float | None:
    """How long a predicted miss stands yet though the batch is in time; None: none does."""
    report, now = context.observed.report, context.observed.now
    if report is None or report.status in ENDED or report.predicted_miss:
        return None
    by, eta_at = context.spec.deadline or report.expires_at, report.eta_at
    if by is None or eta_at is None or by - eta_at >= RISK_ENDS_AT * (by - now):
        return None
    before = conditions_of(context.observed.job).get(Reasons.PREDICTED_MISS.condition, {})
    missed = _predicted_miss(by)  # its message names the deadline: one of another does not stand
    if (before.get("reason"), before.get("message")) != (missed.reason.name, missed.message):
        return None
    return stands_s(before, at_most_s=RISK_STANDS_S, now=now)


def _left(report: BatchReport) -> int:
    return max(0, report.total_lines - report.completed_lines - report.failed_lines)


def _is_true(finding: Finding) -> bool:
    return finding.reason.status == "True"


def state(context: JobContext, *, ends: bool) -> str:
    """One word for people: Pending, Suspended, or the batch's own status."""
    report = context.observed.report
    if report is None:
        if ends:
            return "failed"
        known = context.status.state if context.status.batch_id is not None else None
        return known or ("Suspended" if context.spec.suspend else "Pending")
    if report.suspended and report.status not in ENDED:
        return "Suspended"
    return "Pending" if report.status == "pending" else report.status
