"""The children of an LLMService, as the API server and a cluster's owner would look at them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.operator.planning.worlds import DEFAULTS, OPTIONAL, llmservice, observe_service
from weir_agent.settings import AgentSettings
from weir_operator.planning.kinds import CHILD_KINDS
from weir_operator.planning.llmservice import plan_llmservice
from weir_operator.planning.types import Manifest


def children(
    service: Mapping[str, Any] | None = None, optional_kinds: frozenset[str] = OPTIONAL
) -> dict[str, Manifest]:
    plan = plan_llmservice(observe_service(service, optional_kinds=optional_kinds))
    return {child["kind"]: child for child in plan.children}


def pod(service: Mapping[str, Any] | None = None) -> dict[str, Any]:
    template: dict[str, Any] = children(service)["Deployment"]["spec"]["template"]
    return template


def agent(service: Mapping[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = pod(service)["spec"]["containers"][0]
    return found


def variables(service: Mapping[str, Any] | None = None) -> dict[str, str]:
    return {item["name"]: item.get("value", "") for item in agent(service)["env"]}


def test_every_child_is_owned_labelled_and_named_like_the_service() -> None:
    found = children()
    assert set(found) == {
        "ServiceAccount", "Service", "Deployment", "PodDisruptionBudget", "NetworkPolicy",
        "PodMonitor",
    }  # fmt: skip
    known = {kind.kind: kind.api_version for kind in CHILD_KINDS}
    for kind, child in found.items():
        metadata = child["metadata"]
        assert child["apiVersion"] == known[kind]
        assert (metadata["namespace"], metadata["name"]) == ("team", "chat")
        assert metadata["labels"]["weir.dev/llmservice"] == "chat"
        [owner] = metadata["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == ("svc-1", True)


def test_kinds_that_the_cluster_lacks_are_left_out() -> None:
    assert "PodMonitor" not in children(optional_kinds=frozenset())
    assert "PodMonitor" not in children(llmservice(monitoring={"podMonitor": False}))
    assert "NetworkPolicy" not in children(llmservice(networkPolicy={"enabled": False}))


def test_pods_meet_the_restricted_standard() -> None:
    spec = pod()["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = agent()["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert {next(iter(set(volume) - {"name"})) for volume in spec["volumes"]} == {
        "emptyDir",
        "projected",
    }


def test_every_constraint_and_port_of_the_users_is_kept() -> None:
    """A topology may have two constraints, and a port two protocols: none is lost to the other."""
    zone, host = "topology.kubernetes.io/zone", "kubernetes.io/hostname"

    def spread(key: str, when: str, **more: object) -> dict[str, Any]:
        return {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when, **more}

    own = [
        spread(zone, "DoNotSchedule"),
        spread(zone, "ScheduleAnyway"),
        spread(host, "DoNotSchedule", maxSkew=2),
    ]
    ports = [
        {"containerPort": 9000, "protocol": "TCP"},
        {"containerPort": 9000, "protocol": "UDP"},
        {"containerPort": 8000, "protocol": "UDP"},
        {"containerPort": 8000, "hostPort": 80},
    ]
    overrides = {
        "spec": {
            "topologySpreadConstraints": own,
            "containers": [{"name": "agent", "ports": ports}],
        }
    }
    template = pod(llmservice(podTemplate=overrides))
    found = template["spec"]["topologySpreadConstraints"]
    assert [
        (item["topologyKey"], item["whenUnsatisfiable"], item["maxSkew"]) for item in found
    ] == [
        (host, "DoNotSchedule", 2),
        (zone, "DoNotSchedule", 1),
        (zone, "ScheduleAnyway", 1),
    ]
    assert found[0]["labelSelector"]["matchLabels"]["weir.dev/llmservice"] == "chat"
    [container] = template["spec"]["containers"]
    http, *others = container["ports"]
    assert http == {"name": "http", "containerPort": 8000, "protocol": "TCP", "hostPort": 80}
    assert [(item["containerPort"], item["protocol"]) for item in others] == [
        (9000, "TCP"),
        (9000, "UDP"),
        (8000, "UDP"),
    ]


def test_pods_pull_with_the_operators_secrets_and_their_own() -> None:
    assert "imagePullSecrets" not in pod()["spec"]
    defaults = replace(DEFAULTS, image_pull_secrets=("registry",))
    own = {"spec": {"imagePullSecrets": [{"name": "team-registry"}]}}
    for service, wanted in (
        (llmservice(), ["registry"]),
        (llmservice(podTemplate=own), ["registry", "team-registry"]),
    ):
        plan = plan_llmservice(observe_service(service, defaults=defaults))
        [made] = [child for child in plan.children if child["kind"] == "Deployment"]
        secrets = made["spec"]["template"]["spec"]["imagePullSecrets"]
        assert [item["name"] for item in secrets] == wanted


def test_the_pod_speaks_as_itself_with_a_token_for_weir_only() -> None:
    spec = pod()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == "chat"
    [volume] = [item for item in spec["volumes"] if item["name"] == "token"]
    [source] = volume["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "weir"
    [mount] = [item for item in agent()["volumeMounts"] if item["name"] == "token"]
    env = variables()
    assert env["WEIR_CONTROL_PLANE_TOKEN_FILE"] == f"{mount['mountPath']}/token"
    assert env["WEIR_AGENT_ID"] == "$(POD_NAMESPACE).$(POD_NAME)"
    assert env["WEIR_SERVICE"] == "team/chat"
    names = [item["name"] for item in agent()["env"]]
    assert names.index("POD_NAME") < names.index("WEIR_AGENT_ID")


def test_the_environment_is_valid_for_the_agent() -> None:
    slo = [{"metric": "tbt", "statistic": "p99", "thresholdSeconds": 0.1}]
    engine = {"maxModelLen": 4096, "blockSize": 16, "args": ["--max-num-seqs", "64"]}
    env = variables(
        llmservice(slo=slo, engine=engine, model={"uri": "hf://meta/llama", "revision": "v2"})
    )
    wanted = {
        name.removeprefix("WEIR_").lower(): value
        for name, value in env.items()
        if name.startswith("WEIR_")
    }
    wanted["agent_id"] = "team.chat-5d-1"
    wanted["slo"] = json.loads(wanted["slo"])
    settings = AgentSettings.model_validate(wanted)
    assert set(wanted) - set(AgentSettings.model_fields) <= {"control_plane_token_file"}
    assert settings.slo[0].threshold_s == 0.1
    assert settings.model_revision == "v2"
    assert list(settings.engine_args) == shlex.split(
        "--model meta/llama --served-model-name chat --revision v2 --max-model-len 4096 "
        "--block-size 16 --max-num-seqs 64"
    )


def test_a_model_on_a_claim_is_mounted_read_only() -> None:
    service = llmservice(model={"uri": "pvc://weights/llama/8b", "servedName": "llama"})
    [volume] = [item for item in pod(service)["spec"]["volumes"] if item["name"] == "model"]
    assert volume["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}
    words = shlex.split(variables(service)["WEIR_ENGINE_ARGS"])
    assert words[:4] == ["--model", "/models/llama/8b", "--served-model-name", "llama"]
    in_image = llmservice(model={"uri": "/opt/llama"})
    assert "--model /opt/llama " in variables(in_image)["WEIR_ENGINE_ARGS"]


def test_ending_pods_outlast_their_longest_online_request() -> None:
    service = llmservice(rollout={"drainSeconds": 600, "startupSeconds": 900})
    spec = pod(service)["spec"]
    container = spec["containers"][0]
    pause_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] > pause_s + 600
    assert variables(service)["WEIR_DRAIN_S"] == "600"
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 900
    deployment = children(service)["Deployment"]["spec"]
    # Where a pod's GPU is the only one, its successor waits until it has ended.
    waits_s = spec["terminationGracePeriodSeconds"]
    assert deployment["progressDeadlineSeconds"] >= waits_s + 900 + 600
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_an_engine_that_starts_again_may_take_as_long_as_at_first() -> None:
    """The startup probe is over by then, and nothing answers while the model loads."""
    for startup_s, least_s in ((10, 60), (900, 900)):
        container = agent(llmservice(rollout={"startupSeconds": startup_s}))
        probe = container["livenessProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= least_s
        readiness = container["readinessProbe"]  # requests go elsewhere meanwhile
        assert readiness["periodSeconds"] * readiness["failureThreshold"] <= 15


def test_without_colocation_a_pod_has_no_token_and_no_control_plane() -> None:
    service = llmservice(colocation={"enabled": False})
    assert not {"WEIR_CONTROL_PLANE_URL", "WEIR_CONTROL_PLANE_TOKEN_FILE"} & set(variables(service))
    assert "token" not in {item["name"] for item in pod(service)["spec"]["volumes"]}
    egress = children(service)["NetworkPolicy"]["spec"]["egress"]
    assert not any("to" in rule for rule in egress)


def test_the_network_policy_lets_in_requests_and_out_what_is_needed() -> None:
    policy = children()["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}]}]
    ports = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
    assert ports == [53, 53, 8080, 443]
    closed = llmservice(networkPolicy={"allowFrom": []}, model={"uri": "/opt/llama"})
    policy = children(closed)["NetworkPolicy"]["spec"]
    assert policy["ingress"] == []
    assert 443 not in [port["port"] for rule in policy["egress"] for port in rule["ports"]]


def test_autoscalers_scale_the_llmservice_and_not_the_deployment() -> None:
    metrics = [{"type": "Pods", "pods": {"metric": {"name": "weir_engine_requests"}}}]
    hpa = llmservice(autoscaling={"type": "HPA", "maxReplicas": 4, "metrics": metrics})
    spec = children(hpa)["HorizontalPodAutoscaler"]["spec"]
    assert spec["scaleTargetRef"]["kind"] == "LLMService"
    assert (spec["minReplicas"], spec["maxReplicas"], spec["metrics"]) == (1, 4, metrics)
    triggers = [{"type": "prometheus", "metadata": {"query": "up"}}]
    keda = llmservice(
        autoscaling={"type": "KEDA", "minReplicas": 0, "maxReplicas": 4, "triggers": triggers}
    )
    spec = children(keda)["ScaledObject"]["spec"]
    assert spec["scaleTargetRef"]["kind"] == "LLMService"
    assert (spec["minReplicaCount"], spec["triggers"]) == (0, triggers)
    assert children(keda)["Deployment"]["spec"]["replicas"] == 2


def test_overrides_are_merged_last_by_their_keys() -> None:
    overrides = {
        "metadata": {"labels": {"team": "search", "weir.dev/llmservice": "other"}},
        "spec": {
            "nodeSelector": {"gpu": "h100"},
            "serviceAccountName": "admin",
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "spool"}},
                {"name": "extra", "emptyDir": {}},
            ],
            "containers": [
                {
                    "name": "agent",
                    "env": [{"name": "HF_TOKEN", "value": "x"}, {"name": "HOME", "value": "/h"}],
                    "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
                },
                {"name": "sidecar", "image": "example.org/sidecar"},
            ],
        },
    }
    template = pod(llmservice(podTemplate=overrides))
    spec = template["spec"]
    assert template["metadata"]["labels"]["team"] == "search"
    assert template["metadata"]["labels"]["weir.dev/llmservice"] == "chat"
    assert spec["serviceAccountName"] == "chat"
    assert spec["nodeSelector"] == {"gpu": "h100"}
    volumes = {item["name"]: item for item in spec["volumes"]}
    assert volumes["data"] == {
        "name": "data",
        "persistentVolumeClaim": {"claimName": "spool"},
    }
    assert {"extra", "shm", "tmp", "token"} <= set(volumes)
    first, second = spec["containers"]
    env = {item["name"]: item.get("value") for item in first["env"]}
    assert (env["HF_TOKEN"], env["HOME"], env["WEIR_PORT"]) == ("x", "/h", "8000")
    assert first["command"] == ["python3", "-m", "weir_cli", "serve", "agent"]
    assert second["name"] == "sidecar"


@pytest.mark.parametrize(
    ("field", "items"),
    [
        ("containers", [{"name": {"agent": None}}]),
        ("containers", [{"name": ["agent"]}]),
        ("topologySpreadConstraints", [{"topologyKey": "zone", "whenUnsatisfiable": {}}] * 2),
        ("initContainers", [{"image": "example.org/nameless"}]),
    ],
)
def test_a_list_whose_items_cannot_be_told_apart_is_left_to_the_api_server(
    field: str, items: list[dict[str, Any]]
) -> None:
    """It refuses the Deployment, and the service's conditions give its words."""
    assert pod(llmservice(podTemplate={"spec": {field: items}}))["spec"][field] == items


@pytest.mark.parametrize(
    "source",
    [
        {"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
        {"hostPath": {"path": "/mnt/nvme"}},
        {"csi": {"driver": "local.csi.example.org"}},
        {"nfs": {"server": "files", "path": "/"}},
        {"image": {"reference": "example.org/cache"}},
    ],
    ids=lambda source: next(iter(source)),
)
def test_a_volume_of_any_kind_replaces_ours(source: dict[str, Any]) -> None:
    """Of two kinds in one volume the API server takes neither, and no pod with them."""
    overrides = {"spec": {"volumes": [{"name": "data", **source}]}}
    volumes = pod(llmservice(podTemplate=overrides))["spec"]["volumes"]
    assert [item for item in volumes if item["name"] == "data"] == [{"name": "data", **source}]


def test_a_probe_of_another_kind_replaces_ours() -> None:
    probe = {"livenessProbe": {"exec": {"command": ["true"]}}}
    overrides = {"spec": {"containers": [{"name": "agent", **probe}]}}
    found = agent(llmservice(podTemplate=overrides))["livenessProbe"]
    assert found["exec"] == {"command": ["true"]}
    assert "httpGet" not in found


def test_prometheus_selects_the_pod_monitors_of_services_by_the_labels_that_are_set() -> None:
    chosen = {"release": "prometheus", "app.kubernetes.io/part-of": "kube"}
    kept = {"weir.dev/llmservice": "other", "app.kubernetes.io/managed-by": "helm"}
    given = {**chosen, **kept}
    observed = observe_service(defaults=replace(DEFAULTS, pod_monitor_labels=given))
    labels = {
        child["kind"]: child["metadata"]["labels"] for child in plan_llmservice(observed).children
    }
    assert labels["PodMonitor"] == {**labels["Service"], **chosen}
    assert "release" not in labels["Deployment"]


def test_scraped_metrics_carry_the_labels_that_the_dashboards_select_by() -> None:
    (endpoint,) = children()["PodMonitor"]["spec"]["podMetricsEndpoints"]
    joined = {
        item["targetLabel"]: (item["separator"], item["sourceLabels"])
        for item in endpoint["relabelings"]
    }
    namespace = "__meta_kubernetes_namespace"
    assert joined == {
        "service": ("/", [namespace, "__meta_kubernetes_pod_label_weir_dev_llmservice"]),
        "agent": (".", [namespace, "__meta_kubernetes_pod_name"]),
    }
