"""Who reaches whom by the policies of a release and of a service, and that nobody else does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.chart.chart import EXTERNAL, Helm, Manifest, named, of_kind
from tests.operator.planning.worlds import DEFAULTS, llmservice, observe_service
from tests.support.network_policy import End, Outside, Pod, allows
from weir_operator.planning.llmservice import plan_llmservice
from weir_operator.settings import OperatorSettings

SYSTEM = "weir-system"
SHOP = "team"
API_SERVER = Outside(address="10.0.0.1")
INTERNET = Outside(address="93.184.216.34")
STRANGER = Pod(namespace="other", labels={"app": "web"})
NEIGHBOUR = Pod(namespace=SYSTEM, labels={"app": "web"})
DNS = Pod(namespace="kube-system", labels={"k8s-app": "kube-dns"})
PROMETHEUS = Pod(namespace="monitoring", labels={"app.kubernetes.io/name": "prometheus"})


def told_by_chart(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """What the chart tells the operator of the cluster's network."""
    operator = named(manifests, "Deployment", "weir-operator")
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    told = {item["name"]: item.get("value") for item in container["env"]}
    given = {
        name: told[variable]
        for name in ("control_plane_url", "dns_ports")
        if (variable := f"WEIR_OPERATOR_{name.upper()}") in told
    }
    settings = OperatorSettings.model_validate(given)
    return {"dns_ports": settings.dns_ports, "control_plane_url": settings.control_plane_url}


class Cluster:
    """A release and one LLMService: the ends by name, and all policies."""

    def __init__(self, manifests: Sequence[Manifest], **spec: Any) -> None:  # noqa: ANN401 - a spec
        told = replace(DEFAULTS, control_plane_namespace=SYSTEM, **told_by_chart(manifests))
        plan = plan_llmservice(observe_service(llmservice(**spec), defaults=told))
        children: list[Manifest] = [dict(child) for child in plan.children]
        self.policies = of_kind(manifests, "NetworkPolicy") + of_kind(children, "NetworkPolicy")
        self.policies = [
            {**item, "metadata": {"namespace": SYSTEM, **item["metadata"]}}
            for item in self.policies
        ]
        agent = named(children, "Deployment", "chat")["spec"]["template"]
        self.ends: dict[str, End] = {
            "agent": Pod.of(agent, SHOP),
            "another agent": Pod(
                namespace="ads", labels={"weir.dev/llmservice": "other"}, ports={"http": 8000}
            ),
            "API server": API_SERVER,
            "internet": INTERNET,
            "stranger": STRANGER,
            "neighbour": NEIGHBOUR,
            "DNS": DNS,
            "Prometheus": PROMETHEUS,
        }
        for item in of_kind(manifests, "Deployment", "StatefulSet"):
            name = item["metadata"]["name"].removeprefix("weir-")
            self.ends[name] = Pod.of(item["spec"]["template"], SYSTEM)
        (test,) = of_kind(manifests, "Pod")
        self.ends["helm test"] = Pod.of(test, SYSTEM)

    def wrong(self, flows: Mapping[str, Sequence[tuple[str, int]]], *, allowed: bool) -> list[str]:
        """The connections of a table that are not as they should be."""
        return [
            f"{source} to {target}:{port}"
            for source, targets in flows.items()
            for target, port in targets
            if self.reaches(source, target, port) is not allowed
        ]

    def reaches(self, source: str, target: str, port: int) -> bool:
        """Whether one end reaches a port of another; names are resolved over UDP too."""
        protocols = ("TCP", "UDP") if port == 53 else ("TCP",)
        return all(
            allows(self.policies, self.ends[source], self.ends[target], port, protocol=protocol)
            for protocol in protocols
        )


NEEDED = {
    "agent": [("controlplane", 8080), ("DNS", 53), ("internet", 443)],
    "another agent": [("controlplane", 8080)],
    "operator": [("controlplane", 8080), ("DNS", 53), ("API server", 443), ("API server", 6443)],
    "controlplane": [
        *(("DNS", 53), ("API server", 443), ("API server", 6443)),
        ("internet", 443),  # URIs of BatchJobs
    ],
    "helm test": [("controlplane", 8080)],
    "stranger": [("controlplane", 8080), ("agent", 8000)],
    "Prometheus": [("controlplane", 8080), ("operator", 8081), ("agent", 8000)],
}
STORES = {"controlplane": [("postgresql", 5432), ("redis", 6379)]}
REFUSED = {
    "agent": [("postgresql", 5432), ("redis", 6379), ("operator", 8081), ("another agent", 8000)],
    "operator": [("postgresql", 5432), ("redis", 6379), ("agent", 8000)],
    "stranger": [("postgresql", 5432), ("redis", 6379), ("controlplane", 22), ("agent", 22)],
    "neighbour": [("postgresql", 5432), ("redis", 6379)],
    "helm test": [("postgresql", 5432), ("redis", 6379)],
    "postgresql": [("internet", 443), ("API server", 443), ("controlplane", 8080), ("DNS", 53)],
    "redis": [("internet", 443), ("API server", 443), ("controlplane", 8080), ("DNS", 53)],
    "controlplane": [("agent", 8000), ("internet", 80)],
}


def test_everyone_reaches_what_is_needed_and_nothing_else(
    rendered: Mapping[str, list[Manifest]],
) -> None:
    cluster = Cluster(rendered["default"])
    assert cluster.wrong(NEEDED, allowed=True) == []
    assert cluster.wrong(STORES, allowed=True) == []
    assert cluster.wrong(REFUSED, allowed=False) == []


def test_stores_elsewhere_are_reached_by_the_control_plane_alone(
    rendered: Mapping[str, list[Manifest]],
) -> None:
    cluster = Cluster(rendered["external"])
    assert cluster.wrong(NEEDED, allowed=True) == []
    ports = [("internet", port) for port in (5432, 6379, 443)]
    assert cluster.wrong({"controlplane": ports}, allowed=True) == []
    assert cluster.wrong({"operator": ports[:2], "agent": ports[:2]}, allowed=False) == []


def test_a_service_that_downloads_nothing_reaches_only_the_control_plane(
    rendered: Mapping[str, list[Manifest]],
) -> None:
    cluster = Cluster(rendered["default"], model={"uri": "pvc://weights/llama"})
    assert cluster.wrong({"agent": [("controlplane", 8080), ("DNS", 53)]}, allowed=True) == []
    assert cluster.wrong({"agent": [("internet", 443), ("API server", 443)]}, allowed=False) == []


def test_name_resolution_on_another_port_is_reached_by_all_who_need_it(helm: Helm) -> None:
    """As OpenShift has it: policies know the port of the pods behind the Service."""
    cluster = Cluster(helm.render({"networkPolicy": {"dns": {"ports": [53, 5353]}}}))
    asked = [("DNS", 53), ("DNS", 5353)]
    assert (
        cluster.wrong(dict.fromkeys(("agent", "operator", "controlplane"), asked), allowed=True)
        == []
    )
    usual = Cluster(helm.render({}))
    assert usual.wrong({"agent": [("DNS", 5353)]}, allowed=False) == []


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("https://weir.example.com", 443),
        ("http://weir.example.com:8443", 8443),
        ("http://[2001:db8::5]:8080", 8080),
    ],
)
def test_a_control_plane_behind_an_address_of_its_own_is_reached_there(
    helm: Helm, url: str, port: int
) -> None:
    """By an Ingress, say, which no policy can select."""
    closed = {"networkPolicy": {"apiServer": {"cidrs": ["10.0.0.0/24"]}}}
    spec = {"model": {"uri": "pvc://weights/llama"}}
    asked = {"agent": [("internet", port)], "operator": [("internet", port)]}
    usual = Cluster(helm.render(closed), **spec)
    assert usual.wrong(asked, allowed=False) == []
    cluster = Cluster(helm.render({**closed, "controlplane": {"url": url}}), **spec)
    assert cluster.wrong(asked, allowed=True) == []
    assert (
        cluster.wrong({"agent": [("internet", 80)], "operator": [("internet", 80)]}, allowed=False)
        == []
    )


def test_clients_may_be_narrowed(helm: Helm) -> None:
    """To those that are named; agents and Weir's own pods stay."""
    values = {
        **EXTERNAL,
        "networkPolicy": {
            "clients": [
                {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ads"}}}
            ],
            "monitoring": [],
            "apiServer": {"cidrs": ["10.0.0.0/24"]},
        },
    }
    cluster = Cluster(helm.render(values), networkPolicy={"allowFrom": []})
    narrowed = {"stranger", "Prometheus"}
    kept = {name: targets for name, targets in NEEDED.items() if name not in narrowed}
    assert cluster.wrong(kept, allowed=True) == []
    lost = {name: NEEDED[name] for name in narrowed}
    assert cluster.wrong(lost, allowed=False) == []
    assert not cluster.reaches("operator", "internet", 443)


@pytest.mark.parametrize("component", ["postgresql", "redis"])
def test_without_its_policy_a_store_would_be_open(
    rendered: Mapping[str, list[Manifest]], component: str
) -> None:
    """That the table above is refused by the policies, and not by what evaluates them."""
    cluster = Cluster(rendered["default"])
    cluster.policies = [
        item for item in cluster.policies if item["metadata"]["name"] != f"weir-{component}"
    ]
    port = dict(STORES["controlplane"])[component]
    assert cluster.reaches("stranger", component, port)
