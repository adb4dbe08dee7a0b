"""What NetworkPolicies allow, by the rules of networking.k8s.io/v1; clusters' plugins enforce it.

Pure: policies as plain objects, and ends of a connection. `endPort` and named ports of outside
addresses are not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

Manifest = Mapping[str, Any]
NAME_LABEL = "kubernetes.io/metadata.name"


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod as policies see it; ``ports``: numbers by name."""

    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, template: Manifest, namespace: str) -> Pod:
        """The pod that a template makes."""
        ports = {
            port["name"]: port["containerPort"]
            for container in template["spec"]["containers"]
            for port in container.get("ports", ())
        }
        return cls(namespace=namespace, labels=template["metadata"]["labels"], ports=ports)


@dataclass(frozen=True, kw_only=True)
class Outside:
    """An address that is no pod."""

    address: str


End = Pod | Outside


def allows(
    policies: Sequence[Manifest], source: End, target: End, port: int, *, protocol: str = "TCP"
) -> bool:
    """Whether a connection may be made: out of its source, and into its target."""
    out = _rules(policies, "Egress", source)
    into = _rules(policies, "Ingress", target)
    return all(
        rules is None
        or any(
            _is_port(rule.get("ports"), target, port, protocol)
            and _is_peer(rule.get(peers), end, space)
            for space, rule in rules
        )
        for rules, peers, end in ((out, "to", target), (into, "from", source))
    )


def _rules(
    policies: Sequence[Manifest], direction: str, end: End
) -> list[tuple[str, Manifest]] | None:
    """The rules of one direction for a pod, with their namespace; None: no policy selects it."""
    if not isinstance(end, Pod):
        return None
    mine = [
        policy["spec"]
        for policy in policies
        if policy["metadata"]["namespace"] == end.namespace
        and direction in policy["spec"]["policyTypes"]
        and _selects(policy["spec"]["podSelector"], end.labels)
    ]
    if not mine:
        return None
    return [(end.namespace, rule) for spec in mine for rule in spec.get(direction.lower()) or ()]


def _is_port(ports: Sequence[Manifest] | None, target: End, port: int, protocol: str) -> bool:
    named = target.ports if isinstance(target, Pod) else {}
    return not ports or any(
        item.get("protocol", "TCP") == protocol
        and item.get("port", port) in (port, *(name for name in named if named[name] == port))
        for item in ports
    )


def _is_peer(peers: Sequence[Manifest] | None, end: End, namespace: str) -> bool:
    return not peers or any(_is_one(peer, end, namespace) for peer in peers)


def _is_one(peer: Manifest, end: End, namespace: str) -> bool:
    if isinstance(end, Outside):
        block = peer.get("ipBlock")
        return block is not None and _in_block(block, end.address)
    if "ipBlock" in peer:
        return False
    spaces = peer.get("namespaceSelector")
    here = end.namespace == namespace
    in_space = here if spaces is None else _selects(spaces, {NAME_LABEL: end.namespace})
    return in_space and _selects(peer.get("podSelector") or {}, end.labels)


def _in_block(block: Manifest, address: str) -> bool:
    def within(cidr: str) -> bool:
        return ip_address(address) in ip_network(cidr)

    return within(block["cidr"]) and not any(map(within, block.get("except", ())))


def _selects(selector: Manifest, labels: Mapping[str, str]) -> bool:
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    return wanted.items() <= labels.items() and all(
        _holds(expression, labels) for expression in selector.get("matchExpressions") or ()
    )


def _holds(expression: Manifest, labels: Mapping[str, str]) -> bool:
    value, operator = labels.get(expression["key"]), expression["operator"]
    return {
        "Exists": value is not None,
        "DoesNotExist": value is None,
        "In": value in expression.get("values", ()),
        "NotIn": value not in expression.get("values", ()),
    }[operator]
