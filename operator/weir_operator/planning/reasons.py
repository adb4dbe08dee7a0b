"""The reasons of every condition: stable words for programs. docs/crds.md has them as a table.

Each value is documented by its `says`; a test holds the table against this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["True", "False", "Unknown"]
Severity = Literal["Normal", "Warning"]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a condition has its status. ``event``: the type of Event that its beginning is worth."""

    condition: str
    status: Status
    name: str
    says: str
    event: Severity | None = None


class LlmService:
    """Reasons of an LLMService's conditions."""

    READY = Reason(
        condition="Ready",
        status="True",
        name="Serving",
        says="Configured and Available are True.",
        event="Normal",
    )
    NOT_READY = Reason(
        condition="Ready",
        status="False",
        name="NotAvailable",
        says="Available is False; its message is repeated.",
    )
    NOT_READY_REFUSED = Reason(
        condition="Ready",
        status="False",
        name="NotConfigured",
        says="Configured is False; its message is repeated.",
    )

    CONFIGURED = Reason(
        condition="Configured",
        status="True",
        name="Applied",
        says="Every child is as the spec asks.",
    )
    FIELDS_WITHOUT_EFFECT = Reason(
        condition="Configured",
        status="True",
        name="FieldsWithoutEffect",
        says="Every child is applied; the message names fields that this release does not carry.",
        event="Warning",
    )
    CHILD_REFUSED = Reason(
        condition="Configured",
        status="False",
        name="ChildRefused",
        says="The API server refused a child, mostly for a podTemplate that is not a pod's; the "
        "message is the server's.",
        event="Warning",
    )
    KIND_MISSING = Reason(
        condition="Configured",
        status="False",
        name="KindMissing",
        says="autoscaling.type is KEDA, and the cluster has no ScaledObject: install KEDA.",
        event="Warning",
    )
    NAME_TAKEN = Reason(
        condition="Configured",
        status="False",
        name="NameTaken",
        says="An object with a child's name belongs to somebody else; the message names it.",
        event="Warning",
    )
    INVALID_SPEC = Reason(
        condition="Configured",
        status="False",
        name="InvalidSpec",
        says="The stored spec is not one of this version, because another version of the CRD let "
        "it in; nothing is changed until it is corrected.",
        event="Warning",
    )
    PAUSED = Reason(
        condition="Configured",
        status="Unknown",
        name="Paused",
        says='The annotation weir.dev/paused is "true": children are left alone.',
        event="Normal",
    )

    AVAILABLE = Reason(
        condition="Available",
        status="True",
        name="MinimumReplicasReady",
        says="As many replicas are ready as the rollout allows to be fewest.",
        event="Normal",
    )
    SCALED_TO_ZERO = Reason(
        condition="Available",
        status="False",
        name="ScaledToZero",
        says="spec.replicas is 0.",
    )
    TOO_FEW_READY = Reason(
        condition="Available",
        status="False",
        name="TooFewReady",
        says="Fewer replicas are ready than the rollout allows; the message says why, where a pod "
        "tells.",
        event="Warning",
    )
    REPLICA_FAILURE = Reason(
        condition="Available",
        status="False",
        name="ReplicaFailure",
        says="Pods cannot be made (admission, quota); the message is the API server's.",
        event="Warning",
    )
    NOT_CREATED = Reason(
        condition="Available",
        status="False",
        name="NotCreated",
        says="The Deployment does not exist yet.",
    )

    ROLLED_OUT = Reason(
        condition="Progressing",
        status="False",
        name="RolledOut",
        says="Every replica is of the present spec and ready.",
        event="Normal",
    )
    ROLLING_OUT = Reason(
        condition="Progressing",
        status="True",
        name="RollingOut",
        says="Replicas are being made, replaced or ended.",
    )
    DEADLINE_EXCEEDED = Reason(
        condition="Progressing",
        status="False",
        name="ProgressDeadlineExceeded",
        says="No replica became ready within rollout.startupSeconds plus 10 minutes.",
        event="Warning",
    )

    REGISTERED = Reason(
        condition="Registered",
        status="True",
        name="PodsRegistered",
        says="The control plane knows every pod.",
    )
    REGISTERING = Reason(
        condition="Registered",
        status="False",
        name="Registering",
        says="Pods are being told to the control plane.",
    )
    REGISTRATION_REFUSED = Reason(
        condition="Registered",
        status="False",
        name="RegistrationRefused",
        says="The control plane refused; the message is its own.",
        event="Warning",
    )
    REGISTERED_UNKNOWN = Reason(
        condition="Registered",
        status="Unknown",
        name="ControlPlaneUnreachable",
        says="The control plane does not answer; online requests are not affected.",
        event="Warning",
    )
    NOT_COLOCATED = Reason(
        condition="Registered",
        status="False",
        name="ColocationDisabled",
        says="colocation.enabled is false: no batch work runs here.",
    )

    SLO_MET = Reason(
        condition="SLOMet",
        status="True",
        name="Attained",
        says="Every measured objective holds on every pod.",
        event="Normal",
    )
    SLO_MISSED = Reason(
        condition="SLOMet",
        status="False",
        name="Missed",
        says="The message names each objective that some pod misses, with what was measured.",
        event="Warning",
    )
    SLO_NOT_MEASURED = Reason(
        condition="SLOMet",
        status="Unknown",
        name="NotMeasured",
        says="No online request in the last minute, or no pod has reported.",
    )
    SLO_NONE = Reason(
        condition="SLOMet",
        status="Unknown",
        name="NoObjective",
        says="spec.slo is empty.",
    )

    POLICY_FRESH = Reason(
        condition="PolicyFresh",
        status="True",
        name="Leased",
        says="Every serving pod has a policy whose lease lasts.",
    )
    POLICY_STALE = Reason(
        condition="PolicyFresh",
        status="False",
        name="LeaseEnded",
        says="The message names the pods that run on their own forecast, or online only.",
        event="Warning",
    )
    POLICY_UNKNOWN = Reason(
        condition="PolicyFresh",
        status="Unknown",
        name="NoReport",
        says="No pod has reported yet, the control plane does not answer, or co-location is off.",
    )


class Job:
    """Reasons of a BatchJob's conditions."""

    ACCEPTED = Reason(
        condition="Accepted",
        status="True",
        name="Accepted",
        says="The control plane has the input; the batch is its own from here.",
        event="Normal",
    )
    SERVICE_NOT_FOUND = Reason(
        condition="Accepted",
        status="False",
        name="ServiceNotFound",
        says="serviceRef names no LLMService of the namespace: create it.",
        event="Warning",
    )
    CONFIG_MAP_NOT_FOUND = Reason(
        condition="Accepted",
        status="False",
        name="ConfigMapNotFound",
        says="input.configMapKeyRef names no ConfigMap of the namespace, or no key of it.",
        event="Warning",
    )
    SUBMITTING = Reason(
        condition="Accepted",
        status="False",
        name="Submitting",
        says="The batch is being told to the control plane.",
    )
    NAMESPACE_NOT_BOUND = Reason(
        condition="Accepted",
        status="False",
        name="NamespaceNotBound",
        says="No tenant owns the namespace's BatchJobs: an administrator binds one.",
        event="Warning",
    )
    QUOTA_EXCEEDED = Reason(
        condition="Accepted",
        status="False",
        name="QuotaExceeded",
        says="The tenant's quota is used up; asked again later.",
        event="Warning",
    )
    UNREACHABLE = Reason(
        condition="Accepted",
        status="Unknown",
        name="ControlPlaneUnreachable",
        says="The control plane does not answer; asked again until it does.",
        event="Warning",
    )
    NOT_ACCEPTED = Reason(
        condition="Accepted",
        status="False",
        name="Refused",
        says="The control plane refused the batch for good; Failed has the message.",
    )

    COMPLETED = Reason(
        condition="Complete",
        status="True",
        name="Completed",
        says="Every line has an answer.",
        event="Normal",
    )
    COMPLETED_WITH_ERRORS = Reason(
        condition="Complete",
        status="True",
        name="CompletedWithErrors",
        says="Every line has ended, some with an error of their own; errorURI has them.",
        event="Warning",
    )
    NOT_COMPLETE = Reason(
        condition="Complete",
        status="False",
        name="Unfinished",
        says="The batch has not ended.",
    )
    NEVER_COMPLETE = Reason(
        condition="Complete",
        status="False",
        name="DidNotComplete",
        says="The batch has ended otherwise; Failed has the reason.",
    )

    NOT_FAILED = Reason(
        condition="Failed",
        status="False",
        name="NotFailed",
        says="Nothing has ended the batch early.",
    )
    INVALID_INPUT = Reason(
        condition="Failed",
        status="True",
        name="InvalidInput",
        says="The input has content errors; the message has the first of them.",
        event="Warning",
    )
    EXPIRED = Reason(
        condition="Failed",
        status="True",
        name="Expired",
        says="completionWindow ended first; what was finished is kept, and is at outputURI.",
        event="Warning",
    )
    CANCELLED = Reason(
        condition="Failed",
        status="True",
        name="Cancelled",
        says="The batch was cancelled through the API; what was finished is kept.",
        event="Normal",
    )
    BATCH_NOT_FOUND = Reason(
        condition="Failed",
        status="True",
        name="BatchNotFound",
        says="The control plane does not know the batch of status.batchID any more; a new one is "
        "never made in its place.",
        event="Warning",
    )
    REFUSED = Reason(
        condition="Failed",
        status="True",
        name="Refused",
        says="The control plane refused the batch for good; the message names the field.",
        event="Warning",
    )
    INPUT_TOO_LARGE = Reason(
        condition="Failed",
        status="True",
        name="InputTooLarge",
        says="The ConfigMap's value is over 1 MiB, or not text: give the input by URI.",
        event="Warning",
    )

    SUSPENDED = Reason(
        condition="Suspended",
        status="True",
        name="Suspended",
        says="spec.suspend is true, and nothing is handed out.",
        event="Normal",
    )
    SUSPENDING = Reason(
        condition="Suspended",
        status="False",
        name="Suspending",
        says="spec.suspend is true, and the control plane does not know it yet.",
    )
    RESUMING = Reason(
        condition="Suspended",
        status="True",
        name="Resuming",
        says="spec.suspend is false, and the control plane does not know it yet.",
    )
    NOT_SUSPENDED = Reason(
        condition="Suspended",
        status="False",
        name="NotSuspended",
        says="spec.suspend is false.",
    )

    PREDICTED_MISS = Reason(
        condition="AtRisk",
        status="True",
        name="PredictedMiss",
        says="By forecast the batch ends after its deadline (or its window).",
        event="Warning",
    )
    DEADLINE_PASSED = Reason(
        condition="AtRisk",
        status="True",
        name="DeadlinePassed",
        says="The deadline has passed, and the batch has not ended.",
        event="Warning",
    )
    ON_TIME = Reason(
        condition="AtRisk",
        status="False",
        name="OnTime",
        says="By forecast the batch ends in time.",
    )
    NO_FORECAST = Reason(
        condition="AtRisk",
        status="Unknown",
        name="NoForecast",
        says="Nothing can be said: not read yet, suspended, or no pod serves the model; the "
        "message has what the control plane says.",
    )
    RISK_OVER = Reason(
        condition="AtRisk",
        status="False",
        name="Ended",
        says="The batch has ended.",
    )


def all_reasons(owner: type[LlmService | Job]) -> tuple[Reason, ...]:
    """Every reason of a kind, in the order of this file."""
    return tuple(value for value in vars(owner).values() if isinstance(value, Reason))


LLM_SERVICE_REASONS = all_reasons(LlmService)
BATCH_JOB_REASONS = all_reasons(Job)
