"""The PodDisruptionBudget: node drains take few replicas at once."""

from __future__ import annotations

from weir_operator.planning.context import ServiceContext
from weir_operator.planning.kinds import PDB
from weir_operator.planning.types import Manifest


def pod_disruption_budget(context: ServiceContext) -> Manifest:
    """A budget over all pods; one that is not ready may always be taken."""
    return context.child(
        PDB,
        spec={
            "minAvailable": None,  # excludes ours: an apply must take it away, whoever set it
            "maxUnavailable": context.spec.pod_disruption_budget.max_unavailable,
            "selector": {"matchLabels": context.selector},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    )
