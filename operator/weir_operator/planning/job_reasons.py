"""The reasons of a BatchJob's conditions; docs/crds.md has them as a table."""

from __future__ import annotations

from weir_operator.planning.reasons import Reason, reasons_of


class BatchJobReasons:
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
    FORBIDDEN = Reason(
        condition="Accepted",
        status="False",
        name="Forbidden",
        says="The operator may not do what the batch needs first: read the ConfigMap, or set the "
        "finalizer. The message is the API server's; tried again within a minute.",
        event="Warning",
    )
    INVALID_SPEC = Reason(
        condition="Accepted",
        status="False",
        name="InvalidSpec",
        says="The stored spec is not one of this version, because another version of the CRD let "
        "it in; nothing is asked of the control plane until it is corrected. A batch that was made "
        "goes on.",
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
    INPUT_UNAVAILABLE = Reason(
        condition="Accepted",
        status="False",
        name="InputUnavailable",
        says="The input cannot be read, or kept, for now: the message has what stopped the last "
        "attempt; tried again.",
        event="Warning",
    )
    UNREACHABLE = Reason(
        condition="Accepted",
        status="Unknown",
        name="ControlPlaneUnreachable",
        says="The control plane does not answer, or not to the operator: the message has what it "
        "says; asked again until it does.",
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
        says="By forecast the batch ends after its deadline (or its window); so it stays for its "
        "first ten minutes where the forecast is in time by less than a tenth of what is left.",
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
        says="Nothing can be said: not read yet, suspended, or no pod can take its lines; the "
        "message has what the control plane says.",
    )
    RISK_OVER = Reason(
        condition="AtRisk",
        status="False",
        name="Ended",
        says="The batch has ended.",
    )


BATCH_JOB_REASONS = reasons_of(BatchJobReasons)
