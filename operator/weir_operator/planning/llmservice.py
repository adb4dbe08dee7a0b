"""Plans one LLMService: children, registration at the control plane, status."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from weir_operator.planning import availability, service_telemetry
from weir_operator.planning.adoption import is_ours
from weir_operator.planning.children import build_children
from weir_operator.planning.children.agent_settings import not_carried
from weir_operator.planning.conditions import Finding, events, written
from weir_operator.planning.context import ServiceContext, context_of
from weir_operator.planning.kinds import CHILD_KINDS, DEPLOYMENT, SCALED_OBJECT, SERVICE_ACCOUNT
from weir_operator.planning.llmservice_reasons import LlmServiceReasons as Reasons
from weir_operator.planning.observed import ObservedLLMService
from weir_operator.planning.pausing import PAUSED_ANNOTATION, is_paused
from weir_operator.planning.pods import registered
from weir_operator.planning.types import (
    ChildRef,
    ControlPlaneRequest,
    Manifest,
    Plan,
    PodIdentity,
    ReleaseService,
)
from weir_operator.planning.unreadable import plan_unreadable

FOREIGN_S = 5.0
"""A child of a former namesake is soon collected; then its name is free."""


def plan_llmservice(observed: ObservedLLMService) -> Plan:
    """What the LLMService should have.

    Of one that is being deleted nothing is written; only its remaining pods are told to the
    control plane, so that leases of pods that are gone are dealt out again at once.
    """
    try:
        context = context_of(observed)
    except ValidationError as error:
        return _invalid(observed, error)
    pods = registered(observed.pods, name=context.name)
    requests = _requests(context, observed, pods)
    if observed.service["metadata"].get("deletionTimestamp"):
        return Plan(requests=requests)
    desired = build_children(context, observed.optional_kinds)
    foreign = _foreign(observed, desired)
    removals = _removals(context, observed, desired)
    refused = (*_refused(observed, desired, removals), *_ending(observed, desired))
    configured = _configured(context, observed, foreign, refused)
    findings = _findings(context, observed, pods, configured)
    paused = is_paused(observed.service)
    status = _status(context, observed, findings)
    return Plan(
        children=() if paused else _to_apply(desired, foreign),
        removals=() if paused else removals,
        status=None if status == observed.service.get("status") else status,
        events=events(findings, live=observed.service),
        requests=requests,
        requeue_after_s=FOREIGN_S if foreign else service_telemetry.slo_stands_s(context, observed),
    )


def _requests(
    context: ServiceContext, observed: ObservedLLMService, pods: tuple[PodIdentity, ...]
) -> tuple[ControlPlaneRequest, ...]:
    """Says everything anew each time: the executor leaves out what is known to hold."""
    if not observed.control_plane_reached:
        return ()
    if context.spec.colocation.enabled:
        return (service_telemetry.registration(context, pods),)
    if observed.report is not None:
        return (ReleaseService(namespace=context.namespace, name=context.name),)
    return ()


def _findings(
    context: ServiceContext,
    observed: ObservedLLMService,
    pods: tuple[PodIdentity, ...],
    configured: Finding,
) -> tuple[Finding, ...]:
    deployment = observed.children.get((DEPLOYMENT.kind, context.name))
    available = availability.available(context, deployment, observed.pods)
    figures = service_telemetry.slo_figures(context, observed)
    return (
        _ready(configured, available),
        configured,
        available,
        availability.progressing(context, deployment),
        service_telemetry.registered(context, observed, pods),
        service_telemetry.slo_met(context, observed, figures),
        service_telemetry.policy_fresh(context, observed),
    )


def _configured(
    context: ServiceContext,
    observed: ObservedLLMService,
    foreign: frozenset[tuple[str, str]],
    refused: tuple[str, ...],
) -> Finding:
    if is_paused(observed.service):
        return Finding(
            reason=Reasons.PAUSED,
            message=f"children are left alone while the annotation {PAUSED_ANNOTATION} is there",
        )
    if foreign:
        kind, name = min(foreign)
        return Finding(
            reason=Reasons.NAME_TAKEN,
            message=f"{kind} {name} belongs to somebody else: delete or rename it",
        )
    if refused:
        return Finding(reason=Reasons.CHILD_REFUSED, message="; ".join(refused))
    autoscaling = context.spec.autoscaling
    keda = autoscaling is not None and autoscaling.type == "KEDA"
    if keda and SCALED_OBJECT.kind not in observed.optional_kinds:
        return Finding(
            reason=Reasons.KIND_MISSING,
            message="autoscaling.type KEDA needs the kind ScaledObject: install KEDA",
        )
    idle = not_carried(context)
    if idle:
        return Finding(
            reason=Reasons.FIELDS_WITHOUT_EFFECT,
            message=f"without effect in this release: {', '.join(idle)}",
        )
    return Finding(reason=Reasons.CONFIGURED, message="every child is as the spec asks")


def _refused(
    observed: ObservedLLMService, desired: tuple[Manifest, ...], removals: tuple[ChildRef, ...]
) -> tuple[str, ...]:
    """What the API server says of each child that it does not take, or does not delete.

    Whatever else of the spec has changed since: the same wish is refused still.
    """
    wishes = {_place(child): child for child in desired}
    leaving = {(ref.kind, ref.name): ref.uid for ref in removals}
    told = []
    for place, refusal in sorted(observed.refusals.items(), key=lambda item: item[0]):
        kind, name = place
        if refusal.wish is not None and refusal.wish == wishes.get(place):
            told.append(f"{kind} {name}: {refusal.message}")
        elif refusal.kept_uid is not None and refusal.kept_uid == leaving.get(place):
            told.append(f"{kind} {name} cannot be deleted: {refusal.message}")
    return tuple(told)


def _ending(observed: ObservedLLMService, desired: tuple[Manifest, ...]) -> tuple[str, ...]:
    """Each child that somebody deletes and a finalizer keeps: its controller does nothing for it.

    The API server goes on taking what is applied to it, which then has no effect.
    """
    told = []
    for kind, name in sorted(map(_place, desired)):
        metadata = observed.children.get((kind, name), {}).get("metadata", {})
        if metadata.get("deletionTimestamp"):
            kept = ", ".join(metadata.get("finalizers") or ()) or "its grace period"
            told.append(
                f"{kind} {name} is being deleted and does nothing more, held by {kept}: it is made "
                "anew once it is gone"
            )
    return tuple(told)


def _ready(configured: Finding, available: Finding) -> Finding:
    """Ready = Configured is not False, and Available is True. Nothing else takes part."""
    if configured.reason.status == "False":
        return Finding(reason=Reasons.NOT_READY_REFUSED, message=configured.message)
    if available.reason.status != "True":
        return Finding(reason=Reasons.NOT_READY, message=available.message)
    return Finding(reason=Reasons.READY, message=available.message)


def _status(
    context: ServiceContext, observed: ObservedLLMService, findings: tuple[Finding, ...]
) -> dict[str, Any]:
    deployment = observed.children.get((DEPLOYMENT.kind, context.name))
    selector = ",".join(f"{name}={value}" for name, value in sorted(context.selector.items()))
    tokens = observed.report.offline_tokens_per_s if observed.report else None
    return service_telemetry.without_none(
        {
            "observedGeneration": context.generation,
            "conditions": written(
                findings, live=observed.service, generation=context.generation, now=observed.now
            ),
            "replicas": availability.count(deployment, "replicas"),
            "readyReplicas": availability.count(deployment, "readyReplicas"),
            "updatedReplicas": availability.count(deployment, "updatedReplicas"),
            "selector": selector,
            "url": context.url,
            "model": context.served_name,
            "slo": service_telemetry.slo_figures(context, observed) or None,
            "offlineTokensPerSecond": service_telemetry.rounded(tokens),
            "pods": service_telemetry.pod_figures(observed) or None,
        }
    )


def _invalid(observed: ObservedLLMService, error: ValidationError) -> Plan:
    if observed.service["metadata"].get("deletionTimestamp"):
        return Plan()
    reasons = (Reasons.NOT_READY_REFUSED, Reasons.INVALID_SPEC)
    return plan_unreadable(observed.service, error, reasons=reasons, now=observed.now)


def _foreign(
    observed: ObservedLLMService, desired: tuple[Manifest, ...]
) -> frozenset[tuple[str, str]]:
    """Names of children that are taken by objects that this LLMService does not control."""
    return frozenset(
        _place(child)
        for child in desired
        if (live := observed.children.get(_place(child))) is not None
        and not is_ours(live, observed.service)
    )


def _to_apply(
    desired: tuple[Manifest, ...], foreign: frozenset[tuple[str, str]]
) -> tuple[Manifest, ...]:
    """The children but for those whose names are taken.

    Nor the Deployment where the account is: its pods, which run what the user likes, would have
    the token and the rights of somebody else's account.
    """
    kinds_taken = {kind for kind, _ in foreign}
    withheld = {DEPLOYMENT.kind} if SERVICE_ACCOUNT.kind in kinds_taken else set()
    return tuple(
        child for child in desired if _place(child) not in foreign and child["kind"] not in withheld
    )


def _removals(
    context: ServiceContext, observed: ObservedLLMService, desired: tuple[Manifest, ...]
) -> tuple[ChildRef, ...]:
    wanted = {_place(child) for child in desired}
    return tuple(
        ChildRef(
            api_version=kind.api_version,
            kind=kind.kind,
            namespace=context.namespace,
            name=name,
            uid=live["metadata"]["uid"],
        )
        for kind in CHILD_KINDS
        for (found, name), live in sorted(observed.children.items(), key=lambda item: item[0])
        if found == kind.kind
        and (found, name) not in wanted
        and is_ours(live, observed.service)
        and not live["metadata"].get("deletionTimestamp")
    )


def _place(child: Manifest) -> tuple[str, str]:
    return child["kind"], child["metadata"]["name"]
