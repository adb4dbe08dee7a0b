"""Available and Progressing of an LLMService, from its Deployment and pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from weir_operator.planning.conditions import Finding, conditions_of
from weir_operator.planning.context import ServiceContext
from weir_operator.planning.llmservice_reasons import LlmServiceReasons as Reasons
from weir_operator.planning.pods import trouble
from weir_operator.planning.types import Manifest

PERCENT = 100


def available(
    context: ServiceContext, deployment: Manifest | None, pods: Iterable[Manifest]
) -> Finding:
    """Whether as many replicas are ready as the rollout allows to be fewest; at least one."""
    wanted = context.spec.replicas
    if wanted == 0:
        return Finding(
            reason=Reasons.SCALED_TO_ZERO,
            message="spec.replicas is 0: scale the LLMService up to serve",
        )
    if deployment is None:
        return Finding(reason=Reasons.NOT_CREATED, message="the Deployment does not exist yet")
    needed = needed_replicas(context)
    ready = count(deployment, "readyReplicas")
    if ready >= needed:
        return Finding(reason=Reasons.AVAILABLE, message=f"the endpoint answers at {context.url}")
    refused = _replica_failure(deployment)
    if refused is not None:
        return Finding(reason=Reasons.REPLICA_FAILURE, message=f"pods cannot be made: {refused}")
    why = trouble(pods) or "replicas are starting"
    return Finding(
        reason=Reasons.TOO_FEW_READY, message=f"{ready} of {needed} needed replicas: {why}"
    )


def progressing(context: ServiceContext, deployment: Manifest | None) -> Finding:
    """Whether replicas are being made, replaced or ended."""
    if deployment is None:
        return Finding(reason=Reasons.ROLLING_OUT, message="the Deployment is being made")
    wanted = context.spec.replicas
    told = conditions_of(deployment).get("Progressing", {})
    current = _is_current(deployment)
    if current and told.get("reason") == "ProgressDeadlineExceeded":
        return Finding(reason=Reasons.DEADLINE_EXCEEDED, message=str(told.get("message", "")))
    names = ("replicas", "updatedReplicas", "readyReplicas")
    if current and all(count(deployment, name) == wanted for name in names):
        return Finding(reason=Reasons.ROLLED_OUT, message="every replica is of the present spec")
    refused = _replica_failure(deployment)
    return Finding(
        reason=Reasons.ROLLING_OUT,
        message=f"pods cannot be made: {refused}" if refused else "replicas are being replaced",
    )


def needed_replicas(context: ServiceContext) -> int:
    """The fewest ready replicas that the rollout allows, rounded as a Deployment rounds."""
    rollout = context.spec.rollout
    wanted, missing = context.spec.replicas, rollout.max_unavailable
    if isinstance(missing, str):
        missing = wanted * int(missing.removesuffix("%")) // PERCENT
    if missing == 0 and str(rollout.max_surge) in {"0", "0%"}:
        missing = 1  # a share of too few: a Deployment takes one, or it could replace none
    return max(1, wanted - missing)


def count(deployment: Manifest | None, field: str) -> int:
    """A counter of the Deployment's status; absent means 0."""
    status: Mapping[str, Any] = (deployment or {}).get("status") or {}
    return int(status.get(field) or 0)


def _is_current(deployment: Manifest) -> bool:
    seen = (deployment.get("status") or {}).get("observedGeneration", 0)
    return bool(seen >= deployment["metadata"].get("generation", 0))


def _replica_failure(deployment: Manifest) -> str | None:
    told = conditions_of(deployment).get("ReplicaFailure", {})
    return str(told.get("message", "")) if told.get("status") == "True" else None
