"""The Deployment of the replicas."""

from __future__ import annotations

from typing import Any

from weir_operator.planning.children.merge import merged
from weir_operator.planning.children.pod import grace_s, pod_template
from weir_operator.planning.context import ServiceContext
from weir_operator.planning.kinds import DEPLOYMENT
from weir_operator.planning.types import Manifest

SCHEDULING_S = 600
"""Time for a pod to be scheduled and its image to be pulled, beside the loading of the model.

Where no GPU is spare it is scheduled once the one before has ended.
"""
REVISION_HISTORY = 3


def deployment(context: ServiceContext) -> Manifest:
    """`spec.replicas` pods, replaced by the rollout that the user chose."""
    rollout = context.spec.rollout
    return context.child(
        DEPLOYMENT,
        spec={
            "replicas": context.spec.replicas,
            "revisionHistoryLimit": REVISION_HISTORY,
            "progressDeadlineSeconds": grace_s(context) + rollout.startup_seconds + SCHEDULING_S,
            "selector": {"matchLabels": context.selector},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": rollout.max_surge,
                    "maxUnavailable": rollout.max_unavailable,
                },
            },
            "template": _template(context),
        },
    )


def _template(context: ServiceContext) -> dict[str, Any]:
    template = pod_template(context)
    given = context.spec.pod_template
    if given is None:
        return template
    overrides: dict[str, Any] = {"spec": given.spec or {}}
    if given.metadata is not None:
        overrides["metadata"] = given.metadata.model_dump(exclude_none=True)
    template = merged(template, overrides)
    # A pod without these would be nobody's: not selected, and refused by the control plane.
    template["metadata"]["labels"] |= context.selector
    template["spec"]["serviceAccountName"] = context.name
    return template
