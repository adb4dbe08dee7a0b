"""Plans one BatchJob: its batch at the control plane, status, finalizer and own end."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import ValidationError

from weir_operator.api.batchjob import BatchJobSpec
from weir_operator.planning.conditions import Finding, conditions_of, events, rfc3339, written
from weir_operator.planning.job_conditions import findings, is_final, risk_stands_s, state
from weir_operator.planning.job_context import (
    ENDED,
    UNCANCELLED,
    InputMissingError,
    InputTooLargeError,
    JobContext,
    context_of,
    put_request,
)
from weir_operator.planning.job_reasons import BatchJobReasons as Reasons
from weir_operator.planning.kinds import BATCH_JOB, FINALIZER, MANAGED_BY
from weir_operator.planning.observed import BatchReport, ObservedBatchJob
from weir_operator.planning.pausing import is_paused
from weir_operator.planning.service_telemetry import without_none
from weir_operator.planning.types import CancelBatch, ChildRef, ControlPlaneRequest, Manifest, Plan
from weir_operator.planning.unreadable import plan_unreadable

LOOK_AGAIN_S = 30.0
"""How soon an obstacle that no watched event ends is looked at again."""
RELEASE_S = 2.0
PERCENT = 100
FAR_S = 600.0


def plan_batchjob(observed: ObservedBatchJob) -> Plan:
    """What the BatchJob should have.

    One that another controller manages is left alone, as is one that is paused. Of one that is
    being deleted only its batch is cancelled and our finalizer removed, within a bounded time.
    """
    metadata, spec = observed.job["metadata"], observed.job["spec"]
    if spec.get("managedBy", MANAGED_BY) != MANAGED_BY:
        return _plan_foreign_end(metadata)
    if metadata.get("deletionTimestamp"):
        return _plan_end(observed)
    if is_paused(observed.job):
        return Plan()
    try:
        context = context_of(observed)
    except ValidationError as error:
        return _plan_unreadable(observed, error)
    if context.ended:
        return _plan_ended(context)
    return _plan_open(context)


def _plan_open(context: JobContext) -> Plan:
    request, obstacle = _submission(context)
    found = findings(context, obstacle)
    ends = any(
        item.reason.status == "True" and item.reason.condition in {"Complete", "Failed"}
        for item in found
    )
    status = _status(context, found, ends=ends)
    asked = None if ends else request
    waits = obstacle is not None or request is None
    return Plan(
        status=None if status == context.observed.job.get("status") else status,
        events=events(found, live=context.observed.job),
        requests=() if asked is None else (asked,),
        finalizer=_finalizer(context, ends=ends, submits=request is not None),
        requeue_after_s=_next_look_s(context, waits=waits and not ends),
    )


def _finalizer(context: JobContext, *, ends: bool, submits: bool) -> bool | None:
    """Wanted while a batch is live or about to be; None: it is as it should be."""
    if ends:
        wanted = False
    elif context.live or (submits and not context.spec.suspend):
        wanted = True
    else:
        # An answer that was lost may have made a batch: only an answer tells that there is none.
        wanted = context.finalizer and not context.observed.control_plane_reached
    return None if wanted == context.finalizer else wanted


def _submission(context: JobContext) -> tuple[ControlPlaneRequest | None, Finding | None]:
    """What to ask of the control plane, or why it cannot be asked."""
    observed = context.observed
    unknown_batch = observed.report is None and context.status.batch_id is not None
    if not observed.control_plane_reached or unknown_batch or _is_over(observed.report):
        return None, None
    if observed.refusal is not None and is_final(observed.refusal) and observed.report is None:
        return None, None
    if context.model is None:
        return None, Finding(
            reason=Reasons.SERVICE_NOT_FOUND,
            message=f"serviceRef.name: there is no LLMService {context.spec.service_ref.name} in "
            "this namespace: create it",
        )
    try:
        return put_request(context, context.model), None
    except InputMissingError as error:
        return None, Finding(reason=Reasons.CONFIG_MAP_NOT_FOUND, message=str(error))
    except InputTooLargeError as error:
        return None, Finding(reason=Reasons.INPUT_TOO_LARGE, message=str(error))


def _is_over(report: BatchReport | None) -> bool:
    return report is not None and (report.status in ENDED or report.status == "cancelling")


def _plan_ended(context: JobContext) -> Plan:
    """Takes the finalizer off, and deletes the object when its time is over."""
    release = False if context.finalizer else None
    status = _with_links(context)
    ttl_s, ended_at = context.spec.ttl_seconds_after_finished, context.status.completion_time
    if ttl_s is None or ended_at is None:
        return Plan(finalizer=release, status=status)
    left_s = ttl_s - (context.observed.now - ended_at).total_seconds()
    if left_s > 0:
        return Plan(finalizer=release, status=status, requeue_after_s=left_s)
    itself = ChildRef(
        api_version=BATCH_JOB.api_version,
        kind=BATCH_JOB.kind,
        namespace=context.namespace,
        name=context.name,
        uid=context.uid,
    )
    return Plan(finalizer=release, removals=(itself,))


def _plan_unreadable(observed: ObservedBatchJob, error: ValidationError) -> Plan:
    """A spec of another version, or one that the CRD of another version let in."""
    ended = any(
        conditions_of(observed.job).get(kind, {}).get("status") == "True"
        for kind in ("Complete", "Failed")
    )
    if ended or error.title != BatchJobSpec.__name__:
        return Plan()
    reasons = (Reasons.INVALID_SPEC,)
    return plan_unreadable(observed.job, error, reasons=reasons, now=observed.now)


def _plan_foreign_end(metadata: Manifest) -> Plan:
    """Of a BatchJob of another controller: our finalizer came with a copied manifest.

    No batch of ours stands behind it, and nobody else takes it off.
    """
    ours = FINALIZER in (metadata.get("finalizers") or ())
    return Plan(finalizer=False) if ours and metadata.get("deletionTimestamp") else Plan()


def _plan_end(observed: ObservedBatchJob) -> Plan:
    """The object is being deleted: its batch is cancelled, then the finalizer goes.

    A control plane that does not answer holds it for a bounded time; the batch is then found to be
    an orphan, and cancelled, once the control plane is back.
    """
    metadata = observed.job["metadata"]
    if FINALIZER not in (metadata.get("finalizers") or ()):
        return Plan()
    reached, report = observed.control_plane_reached, observed.report
    if reached and (report is None or _is_over(report) or report.status in UNCANCELLED):
        return Plan(finalizer=False)
    began = datetime.fromisoformat(metadata["deletionTimestamp"])
    left_s = observed.finalizer_deadline_s - (observed.now - began).total_seconds()
    if left_s <= 0:
        return Plan(finalizer=False)
    cancel = (CancelBatch(uid=metadata["uid"]),) if reached else ()
    return Plan(requests=cancel, requeue_after_s=min(RELEASE_S, left_s))


def _next_look_s(context: JobContext, *, waits: bool) -> float | None:
    """When to look again: at the deadline, and after a while at what no event tells of."""
    times_s = [LOOK_AGAIN_S] if waits else []
    stands_s = risk_stands_s(context)
    times_s += [] if stands_s is None else [stands_s]
    if context.spec.deadline is not None:
        left_s = (context.spec.deadline - context.observed.now).total_seconds()
        times_s += [left_s] if left_s > 0 else []
    return min(times_s, default=None)


def _status(context: JobContext, found: tuple[Finding, ...], *, ends: bool) -> dict[str, Any]:
    report, live = context.observed.report, context.observed.job
    known = report is not None or context.status.batch_id is not None
    made = {
        "observedGeneration": context.generation,
        "conditions": written(
            found, live=live, generation=context.generation, now=context.observed.now
        ),
        "state": state(context, ends=ends),
        "batchID": context.status.batch_id or (report.batch_id if report else None),
        "model": context.model if known else None,
    }
    figures = _kept_figures(live) if report is None else _figures(report, context.observed.now)
    if ends:
        ended_at = report.ended_at if report is not None else None
        figures = figures | {"completionTime": rfc3339(ended_at or context.observed.now)}
        figures.pop("eta", None)
    return without_none(made | figures)


def _kept_figures(live: Manifest) -> dict[str, Any]:
    """While nobody tells how far the batch is, what was known of it stands; a forecast does not."""
    names = ("counts", "progressPercent", "expiresAt", "startTime", "outputURI", "errorURI")
    known = live.get("status") or {}
    start = {"counts": {"total": 0, "completed": 0, "failed": 0}, "progressPercent": 0}
    return start | {name: known[name] for name in names if name in known}


def _with_links(context: JobContext) -> dict[str, Any] | None:
    """The status of an ended job with the links as they are now: signed ones are renewed."""
    report, live = context.observed.report, dict(context.observed.job.get("status") or {})
    links = {} if report is None else without_none(_links(report))
    return None if live | links == live else live | links


def _links(report: BatchReport) -> dict[str, Any]:
    return {
        "outputURI": report.delivery.output_uri or report.output_link,
        "errorURI": report.delivery.error_uri or report.error_link,
    }


def _figures(report: BatchReport, now: datetime) -> dict[str, Any]:
    done = report.completed_lines + report.failed_lines
    return {
        "counts": {
            "total": report.total_lines,
            "completed": report.completed_lines,
            "failed": report.failed_lines,
        },
        "progressPercent": PERCENT * done // report.total_lines if report.total_lines else 0,
        "eta": _written(_coarse(report.eta_at, now)),
        "expiresAt": _written(report.expires_at),
        "startTime": _written(report.started_at),
        **_links(report),
    }


def _coarse(at: datetime | None, now: datetime) -> datetime | None:
    """A forecast, rounded up to a minute, near its end to ten seconds: each change is a write."""
    if at is None:
        return None
    grid_s = 60 if (at - now).total_seconds() > FAR_S else 10
    return datetime.fromtimestamp(-(-at.timestamp() // grid_s) * grid_s, at.tzinfo)


def _written(at: datetime | None) -> str | None:
    return None if at is None else rfc3339(at)
