"""The NetworkPolicy: inwards the endpoint, outwards what an agent needs and no more."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from weir_operator.planning.context import ServiceContext
from weir_operator.planning.kinds import NETWORK_POLICY
from weir_operator.planning.observed import OperatorDefaults
from weir_operator.planning.types import Manifest

HTTPS_PORT = 443
HTTP_PORT = 80


def network_policy(context: ServiceContext) -> Manifest:
    """The endpoint for the allowed peers; DNS, the control plane and model downloads outwards."""
    ingress: dict[str, Any] = {"ports": [{"port": "http", "protocol": "TCP"}]}
    if context.spec.network_policy.allow_from is not None:
        ingress["from"] = list(context.spec.network_policy.allow_from)
    return context.child(
        NETWORK_POLICY,
        spec={
            "podSelector": {"matchLabels": context.selector},
            "policyTypes": ["Ingress", "Egress"],
            # An empty `from` would let everybody in; no peers means nobody.
            "ingress": [] if ingress.get("from") == [] else [ingress],
            "egress": _egress(context),
        },
    )


def _egress(context: ServiceContext) -> list[Any]:
    spec, defaults = context.spec, context.defaults
    rules: list[Any] = [
        {
            "ports": [
                {"port": port, "protocol": protocol}
                for port in defaults.dns_ports
                for protocol in ("UDP", "TCP")
            ]
        }
    ]
    if spec.colocation.enabled:
        namespace = {"kubernetes.io/metadata.name": defaults.control_plane_namespace}
        rules.append(
            {
                "to": [
                    {
                        "namespaceSelector": {"matchLabels": namespace},
                        "podSelector": {"matchLabels": dict(defaults.control_plane_labels)},
                    }
                ],
                "ports": [{"port": defaults.control_plane_port, "protocol": "TCP"}],
            }
        )
        elsewhere = _port_elsewhere(defaults)
        if elsewhere is not None:
            rules.append({"ports": [{"port": elsewhere, "protocol": "TCP"}]})
    if spec.model.uri.startswith("hf://"):
        rules.append({"ports": [{"port": HTTPS_PORT, "protocol": "TCP"}]})
    return rules + list(spec.network_policy.allow_to)


def _port_elsewhere(defaults: OperatorDefaults) -> int | None:
    """The port of a control plane that pods reach by another way than its Service; None: by that.

    An Ingress or a load balancer is no pod that could be selected: its port is open to any address.
    """
    url = urlsplit(defaults.control_plane_url)
    host = url.hostname or ""
    _, *domain = host.split(".")
    own = domain[:1] in ([], [defaults.control_plane_namespace]) and domain[1:2] in ([], ["svc"])
    if own and ":" not in host:
        return None
    return url.port or (HTTPS_PORT if url.scheme == "https" else HTTP_PORT)
