"""The PodMonitor, where the cluster has that kind."""

from __future__ import annotations

import re

from weir_operator.planning.context import ServiceContext
from weir_operator.planning.kinds import MADE_BY, POD_MONITOR, SERVICE_LABEL
from weir_operator.planning.types import Manifest

POD_LABEL_META = "__meta_kubernetes_pod_label_" + re.sub(r"[^a-zA-Z0-9]", "_", SERVICE_LABEL)


def pod_monitor(context: ServiceContext) -> Manifest:
    """Every pod's `/metrics`, labelled as the control plane labels what it says of the pod.

    ``service`` is NAMESPACE/NAME, ``agent`` NAMESPACE.POD: the dashboards select by them.
    """
    child = context.child(
        POD_MONITOR,
        spec={
            "selector": {"matchLabels": context.selector},
            "podTargetLabels": [SERVICE_LABEL],
            "podMetricsEndpoints": [
                {
                    "port": "http",
                    "path": "/metrics",
                    "interval": context.spec.monitoring.interval,
                    "relabelings": [
                        _label("service", "/", POD_LABEL_META),
                        _label("agent", ".", "__meta_kubernetes_pod_name"),
                    ],
                }
            ],
        },
    )
    child["metadata"]["labels"] = {
        **context.labels,
        **context.defaults.pod_monitor_labels,  # Prometheus may select by any label
        **context.selector,
        **MADE_BY,
    }
    return child


def _label(target: str, separator: str, source: str) -> Manifest:
    """A label of every sample: the pod's namespace, the separator and ``source``."""
    return {
        "sourceLabels": ["__meta_kubernetes_namespace", source],
        "separator": separator,
        "targetLabel": target,
        "action": "replace",
    }
