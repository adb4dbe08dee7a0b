"""Pods, Secrets, policies and hooks as a cluster gets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.chart.chart import EXTERNAL, VALUES, Helm, Manifest, named, of_kind, pods
from weir_controlplane.keys.secret import parse_secret
from weir_operator.planning.observed import OperatorDefaults

RENDERED = tuple(VALUES)


@pytest.mark.parametrize("values", RENDERED)
def test_every_pod_is_restricted_and_writes_only_to_volumes(
    rendered: Mapping[str, list[Manifest]], values: str
) -> None:
    seen = 0
    for name, pod in pods(rendered[values]):
        spec = pod["spec"]
        security = spec["securityContext"]
        assert security["runAsNonRoot"], name
        assert security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert isinstance(spec["automountServiceAccountToken"], bool), name
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}, name
        for volume in spec["volumes"]:
            kinds = volume.keys() - {"name"}
            assert kinds <= {"emptyDir", "secret", "projected", "persistentVolumeClaim"}, name
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"], name
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["requests"], name
            assert container["resources"]["limits"]["memory"], name
        seen += 1
    assert seen >= 5


@pytest.mark.parametrize("values", RENDERED)
@pytest.mark.parametrize("component", ["operator", "controlplane"])
def test_both_servers_are_probed_spread_and_protected(
    rendered: Mapping[str, list[Manifest]], values: str, component: str
) -> None:
    deployment = named(rendered[values], "Deployment", f"weir-{component}")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    assert deployment["spec"]["replicas"] == 2
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [item["labelSelector"]["matchLabels"] for item in spec["topologySpreadConstraints"]]
    budget = named(rendered[values], "PodDisruptionBudget", f"weir-{component}")
    selectors += [budget["spec"]["selector"]["matchLabels"]]
    selectors += [deployment["spec"]["selector"]["matchLabels"]]
    for selector in selectors:
        assert selector.items() <= labels.items()


def test_a_drain_takes_one_replica_at_a_time_unless_all_must_move_together(
    helm: Helm, rendered: Mapping[str, list[Manifest]]
) -> None:
    """A replica that must start beside one on a cordoned node starts nowhere."""

    def at_once(manifests: list[Manifest], component: str) -> object:
        budget = named(manifests, "PodDisruptionBudget", f"weir-{component}")
        return budget["spec"]["maxUnavailable"]

    assert at_once(rendered["default"], "controlplane") == "100%"
    own = helm.render({"controlplane": {"affinity": {"nodeAffinity": {}}}})
    assert at_once(own, "controlplane") == "100%"
    shared = helm.render({"files": {"volume": {"accessMode": "ReadWriteMany"}}})
    assert at_once(shared, "controlplane") == 1
    assert at_once(rendered["external"], "controlplane") == 1
    for values in RENDERED:
        assert at_once(rendered[values], "operator") == 1


def test_replicas_share_a_node_only_where_their_files_do(
    helm: Helm, rendered: Mapping[str, list[Manifest]]
) -> None:
    def affinity(manifests: list[Manifest]) -> object:
        deployment = named(manifests, "Deployment", "weir-controlplane")
        return deployment["spec"]["template"]["spec"].get("affinity")

    selector = named(rendered["default"], "Deployment", "weir-controlplane")["spec"]["selector"]
    together = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    rule = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [together]}}
    assert affinity(rendered["default"]) == rule
    assert affinity(rendered["external"]) is None
    assert affinity(helm.render({"files": {"volume": {"accessMode": "ReadWriteMany"}}})) is None
    term = {"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}
    nodes = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    own: dict[str, Any] = {"nodeAffinity": nodes}
    assert affinity(helm.render({"controlplane": {"affinity": own}})) == {**own, **rule}
    apart: dict[str, Any] = {"podAffinity": {}}
    assert affinity(helm.render({"controlplane": {"affinity": apart}})) == apart


def test_the_network_policies_of_services_find_the_control_plane(
    rendered: Mapping[str, list[Manifest]],
) -> None:
    deployment = named(rendered["default"], "Deployment", "weir-controlplane")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    expected = OperatorDefaults(
        control_plane_url="http://x", control_plane_namespace="x", vllm_image="x", torch_image="x"
    )
    assert expected.control_plane_labels.items() <= labels.items()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": expected.control_plane_port}]


def test_stores_in_the_chart_are_reached_by_the_control_plane_alone(
    rendered: Mapping[str, list[Manifest]],
) -> None:
    for store in ("postgresql", "redis"):
        policy = named(rendered["default"], "NetworkPolicy", f"weir-{store}")["spec"]
        (rule,) = policy["ingress"]
        (peer,) = rule["from"]
        assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "controlplane"
        assert policy["egress"] == []


@pytest.mark.parametrize("values", RENDERED)
def test_every_pod_that_stays_has_a_policy_both_ways(
    rendered: Mapping[str, list[Manifest]], values: str
) -> None:
    policies = [item["spec"] for item in of_kind(rendered[values], "NetworkPolicy")]
    for name, pod in pods(of_kind(rendered[values], "Deployment", "StatefulSet")):
        labels = pod["metadata"]["labels"]
        mine = [p for p in policies if p["podSelector"]["matchLabels"].items() <= labels.items()]
        assert [p["policyTypes"] for p in mine] == [["Ingress", "Egress"]], name


def secrets(manifests: list[Manifest]) -> dict[str, dict[str, str]]:
    return {item["metadata"]["name"]: item["stringData"] for item in of_kind(manifests, "Secret")}


def test_no_secret_has_a_default(helm: Helm, rendered: Mapping[str, list[Manifest]]) -> None:
    first, second = secrets(rendered["default"]), secrets(helm.render())
    assert set(first) == {"weir-admin-key", "weir-database", "weir-redis"}
    for name, data in first.items():
        for key, value in data.items():
            assert value != second[name][key], f"{name}/{key}"
    assert parse_secret(first["weir-admin-key"]["key"]) is not None


def test_given_secrets_and_stores_are_used_and_none_are_made(
    rendered: Mapping[str, list[Manifest]],
) -> None:
    manifests = rendered["external"]
    assert of_kind(manifests, "Secret", "StatefulSet", "PersistentVolumeClaim") == []
    spec = named(manifests, "Deployment", "weir-controlplane")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    env = {item["name"]: item for item in container["env"]}
    used = {
        env["WEIR_DATABASE_URL"]["valueFrom"]["secretKeyRef"]["name"],
        env["WEIR_REDIS_URL"]["valueFrom"]["secretKeyRef"]["name"],
        *(item["secretRef"]["name"] for item in container["envFrom"]),
        *(item["secret"]["secretName"] for item in spec["volumes"] if "secret" in item),
    }
    assert used == {"postgres", "redis", "store", "admin"}
    assert env["WEIR_FILES_URL"]["value"] == EXTERNAL["files"]["url"]


def test_data_stays_unless_asked(rendered: Mapping[str, list[Manifest]]) -> None:
    def kept(values: str) -> set[str]:
        return {
            item["metadata"]["name"]
            for item in rendered[values]
            if (item["metadata"].get("annotations") or {}).get("helm.sh/resource-policy") == "keep"
        }

    def after_deletion(values: str) -> str:
        spec: dict[str, Any] = named(rendered[values], "StatefulSet", "weir-postgresql")["spec"]
        return str(spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"])

    # That of Redis too: whoever takes another Redis may have written its URL there.
    assert kept("default") == {"weir-admin-key", "weir-database", "weir-files", "weir-redis"}
    assert after_deletion("default") == "Retain"
    assert kept("everything") == set()
    assert after_deletion("everything") == "Delete"


@pytest.mark.parametrize(
    ("event", "words"),
    [("pre-install,pre-upgrade", ["apply"]), ("pre-delete", ["release", "--delete-crds"])],
)
def test_a_hook_job_has_its_account_and_roles_before_it(
    rendered: Mapping[str, list[Manifest]], event: str, words: list[str]
) -> None:
    hooks = [
        item
        for item in rendered["everything"]
        if (item["metadata"].get("annotations") or {}).get("helm.sh/hook") == event
    ]
    weights = {
        item["kind"]: int(item["metadata"]["annotations"]["helm.sh/hook-weight"]) for item in hooks
    }
    job = weights.pop("Job")
    assert {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"} <= weights.keys()
    assert max(weights.values()) < job
    (found,) = of_kind(hooks, "Job")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "weir_operator.crds"]
    assert set(words) <= set(container["args"])
    for item in hooks:
        assert "hook-succeeded" in item["metadata"]["annotations"]["helm.sh/hook-delete-policy"]


def hook_pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """The spec of each pod that Helm runs for a while."""
    return {name: pod["spec"] for name, pod in pods(of_kind(manifests, "Job", "Pod"))}


HOOK_PODS = {"Job/weir-crds", "Job/weir-uninstall", "Pod/weir-test"}


def test_every_hook_runs_in_a_namespace_with_a_quota_on_anything(
    helm: Helm, rendered: Mapping[str, list[Manifest]]
) -> None:
    """The quota admits no pod that does not name what it is on."""
    for name, spec in hook_pods(rendered["default"]).items():
        (container,) = spec["containers"]
        for kind in ("requests", "limits"):
            assert container["resources"][kind].keys() == {"cpu", "memory"}, name
    own = {"limits": {"cpu": 1, "memory": "512Mi", "ephemeral-storage": "64Mi"}}
    found = hook_pods(helm.render({"hooks": {"resources": own}}))
    assert found.keys() == HOOK_PODS
    for name, spec in found.items():
        (container,) = spec["containers"]
        assert container["resources"]["limits"] == own["limits"], name


def test_every_hook_runs_on_the_nodes_of_what_it_works_for(helm: Helm) -> None:
    def placed(pool: str) -> Manifest:
        taint = {"key": "pool", "value": pool, "effect": "NoSchedule"}
        return {"nodeSelector": {"pool": pool}, "tolerations": [taint]}

    given = {"operator": placed("system"), "controlplane": placed("storage")}
    found = hook_pods(helm.render({**given, "images": {"pullSecrets": [{"name": "pull"}]}}))
    assert found.keys() == HOOK_PODS
    for name, spec in found.items():
        wanted = placed("storage" if name == "Pod/weir-test" else "system")
        assert {key: spec.get(key) for key in wanted} == wanted, name
        assert spec["imagePullSecrets"] == [{"name": "pull"}], name


def test_monitoring_objects_appear_where_the_cluster_knows_them(
    helm: Helm, rendered: Mapping[str, list[Manifest]]
) -> None:
    assert of_kind(rendered["default"], "PodMonitor", "PrometheusRule") == []
    assert len(of_kind(rendered["everything"], "PodMonitor")) == 2
    never = {"podMonitor": {"create": "never"}, "prometheusRule": {"create": "never"}}
    refused = helm.render({"monitoring": never}, apis=["monitoring.coreos.com/v1"])
    assert of_kind(refused, "PodMonitor", "PrometheusRule") == []
