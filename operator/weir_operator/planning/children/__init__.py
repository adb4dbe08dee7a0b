"""The children of an LLMService, a builder a kind; each reads a `ServiceContext` only."""

from __future__ import annotations

from weir_operator.planning.children.autoscaler import hpa, scaled_object
from weir_operator.planning.children.deployment import deployment
from weir_operator.planning.children.network_policy import network_policy
from weir_operator.planning.children.pod_disruption_budget import pod_disruption_budget
from weir_operator.planning.children.pod_monitor import pod_monitor
from weir_operator.planning.children.service import service, service_account
from weir_operator.planning.context import ServiceContext
from weir_operator.planning.kinds import POD_MONITOR, SCALED_OBJECT
from weir_operator.planning.types import Manifest


def build_children(context: ServiceContext, optional_kinds: frozenset[str]) -> tuple[Manifest, ...]:
    """Every child that the LLMService should have, in the order in which they are applied."""
    spec = context.spec
    children = [
        service_account(context),
        service(context),
        deployment(context),
        pod_disruption_budget(context),
    ]
    if spec.network_policy.enabled:
        children.append(network_policy(context))
    if spec.autoscaling is not None and spec.autoscaling.type == "HPA":
        children.append(hpa(context, spec.autoscaling))
    if spec.monitoring.pod_monitor and POD_MONITOR.kind in optional_kinds:
        children.append(pod_monitor(context))
    if (
        spec.autoscaling is not None
        and spec.autoscaling.type == "KEDA"
        and SCALED_OBJECT.kind in optional_kinds
    ):
        children.append(scaled_object(context, spec.autoscaling))
    return tuple(children)
