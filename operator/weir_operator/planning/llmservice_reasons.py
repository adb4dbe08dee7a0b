"""The reasons of an LLMService's conditions; docs/crds.md has them as a table."""

from __future__ import annotations

from weir_operator.planning.reasons import Reason, reasons_of


class LlmServiceReasons:
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
        says="The API server refused a child, mostly for a podTemplate that is not a pod's, or to "
        "delete one that is not asked for any more, or has done neither for ten seconds, such as "
        "with an admission webhook that is down; the message is the server's. Or something changes "
        "a child back each time it is put right; the message says how to find it. Or somebody "
        "deletes a child, and its finalizers keep it; it is made anew once it is gone.",
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
        says='The annotation weir.dev/paused is there and not "false": children are left alone.',
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
        says="No replica became ready within rollout.drainSeconds, rollout.startupSeconds and some "
        "10 minutes.",
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
        says="The control plane does not answer, or not to the operator: the message has what it "
        "says; online requests are not affected.",
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
        says="Every measured objective holds on every pod; so it stays for ten minutes after the "
        "last online request.",
        event="Normal",
    )
    SLO_MISSED = Reason(
        condition="SLOMet",
        status="False",
        name="Missed",
        says="The message names each objective that some pod misses, with what was measured; so it "
        "stays for ten minutes after the last online request, and for its first ten where an "
        "objective is held by less than a tenth.",
        event="Warning",
    )
    SLO_NOT_MEASURED = Reason(
        condition="SLOMet",
        status="Unknown",
        name="NotMeasured",
        says="No online request in the last ten minutes, or no pod has reported.",
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


LLM_SERVICE_REASONS = reasons_of(LlmServiceReasons)
