"""The Service that applications call, and the ServiceAccount that the pods run as."""

from __future__ import annotations

from weir_operator.planning.context import AGENT_PORT, ServiceContext
from weir_operator.planning.kinds import SERVICE, SERVICE_ACCOUNT
from weir_operator.planning.types import Manifest


def service_account(context: ServiceContext) -> Manifest:
    """An identity of the service's own, without rights: the control plane tells pods by it."""
    return context.child(SERVICE_ACCOUNT, automountServiceAccountToken=False)


def service(context: ServiceContext) -> Manifest:
    """A ClusterIP Service on the agent's port; only ready pods are behind it."""
    return context.child(
        SERVICE,
        spec={
            "type": "ClusterIP",
            "selector": context.selector,
            "ports": [
                {"name": "http", "port": AGENT_PORT, "protocol": "TCP", "targetPort": "http"}
            ],
        },
    )
