"""The PodMonitor, where the cluster has that kind."""

from __future__ import annotations

from weir_operator.planning.context import ServiceContext
from weir_operator.planning.kinds import POD_MONITOR, SERVICE_LABEL
from weir_operator.planning.types import Manifest


def pod_monitor(context: ServiceContext) -> Manifest:
    """Every pod's `/metrics`, labelled with the service."""
    return context.child(
        POD_MONITOR,
        spec={
            "selector": {"matchLabels": context.selector},
            "podTargetLabels": [SERVICE_LABEL],
            "podMetricsEndpoints": [
                {
                    "port": "http",
                    "path": "/metrics",
                    "interval": context.spec.monitoring.interval,
                }
            ],
        },
    )
