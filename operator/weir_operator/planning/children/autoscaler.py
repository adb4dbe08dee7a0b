"""Autoscalers. Both scale the LLMService: `spec.replicas` stays the only source of replicas."""

from __future__ import annotations

from typing import Any

from weir_operator.api.llmservice_operation import Autoscaling
from weir_operator.planning.context import ServiceContext
from weir_operator.planning.kinds import API_VERSION, HPA, LLM_SERVICE, SCALED_OBJECT
from weir_operator.planning.types import Manifest


def hpa(context: ServiceContext, wanted: Autoscaling) -> Manifest:
    """A HorizontalPodAutoscaler with the metrics that were given."""
    spec: dict[str, Any] = {
        "scaleTargetRef": _target(context),
        "minReplicas": wanted.min_replicas,
        "maxReplicas": wanted.max_replicas,
        "metrics": list(wanted.metrics or ()),
    }
    if wanted.behavior is not None:
        spec["behavior"] = wanted.behavior
    return context.child(HPA, spec=spec)


def scaled_object(context: ServiceContext, wanted: Autoscaling) -> Manifest:
    """KEDA's ScaledObject with the triggers that were given."""
    spec: dict[str, Any] = {
        "scaleTargetRef": _target(context),
        "minReplicaCount": wanted.min_replicas,
        "maxReplicaCount": wanted.max_replicas,
        "triggers": list(wanted.triggers or ()),
    }
    if wanted.behavior is not None:
        spec["advanced"] = {"horizontalPodAutoscalerConfig": {"behavior": wanted.behavior}}
    return context.child(SCALED_OBJECT, spec=spec)


def _target(context: ServiceContext) -> dict[str, str]:
    return {"apiVersion": API_VERSION, "kind": LLM_SERVICE.kind, "name": context.name}
