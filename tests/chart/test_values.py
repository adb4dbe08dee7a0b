"""Values: every one described, wrong and unknown ones refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.chart.chart import CHART, EXTERNAL, KUBERNETES, ROOT, Helm, HelmError, Manifest, named

SCHEMA = json.loads((CHART / "values.schema.json").read_text())

BAD: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "unknown at the top": ({"operators": {}}, "'operators' not allowed"),
    "unknown below": ({"operator": {"replica": 2}}, "'replica' not allowed"),
    "unknown setting": ({"controlplane": {"settings": {"chunks": 1}}}, "'chunks' not allowed"),
    "setting of the chart": ({"controlplane": {"settings": {"port": 1}}}, "'port' not allowed"),
    "setting out of bounds": (
        {"controlplane": {"settings": {"chunk_lines": 0}}},
        "/controlplane/settings/chunk_lines",
    ),
    "setting of a wrong type": (
        {"operator": {"settings": {"workers": "many"}}},
        "/operator/settings/workers",
    ),
    "no replicas": ({"controlplane": {"replicas": 0}}, "/controlplane/replicas"),
    "half a replica": ({"operator": {"replicas": 1.5}}, "/operator/replicas"),
    "replicas as text": ({"operator": {"replicas": "2"}}, "/operator/replicas"),
    "log level": ({"operator": {"logLevel": "trace"}}, "/operator/logLevel"),
    "pull policy": ({"images": {"pullPolicy": "Sometimes"}}, "/images/pullPolicy"),
    "image in capitals": ({"images": {"operator": {"repository": "Weir"}}}, "/operator/repository"),
    "registry as a URL": ({"images": {"registry": "https://registry.test"}}, "/images/registry"),
    "tag in the repository": (
        {"images": {"vllmAgent": {"repository": "registry.test:5000/weir-agent:v1"}}},
        "/vllmAgent/repository",
    ),
    "image tag": ({"images": {"operator": {"tag": "a b"}}}, "/images/operator/tag"),
    "image digest": ({"images": {"vllmAgent": {"digest": "sha256:1"}}}, "/vllmAgent/digest"),
    "pull secret without a name": (
        {"images": {"pullSecrets": [{"name": "A_b"}]}},
        "/images/pullSecrets/0/name",
    ),
    "pull secret as text": ({"images": {"pullSecrets": ["a"]}}, "/images/pullSecrets/0"),
    "name in capitals": ({"fullnameOverride": "Weir"}, "/fullnameOverride"),
    "secret's name": ({"database": {"existingSecret": "my secret"}}, "/database/existingSecret"),
    "URL for a secret": (
        {"database": {"existingSecret": "postgresql://u:p@h/d"}},
        "/database/existingSecret",
    ),
    "storage size": ({"database": {"inChart": {"storage": {"size": "big"}}}}, "/storage/size"),
    "root": ({"database": {"inChart": {"runAsUser": 0}}}, "/database/inChart/runAsUser"),
    "files with a password": ({"files": {"url": "s3://key:secret@bucket"}}, "/files/url"),
    "files by path": ({"files": {"url": "/data"}}, "/files/url"),
    "files in each pod": (
        {"files": {"url": "file:///var/lib/weir/files"}},
        "files.url: file:///var/lib/weir/files is in each pod alone",
    ),
    "files in memory": ({"files": {"url": "memory://weir"}}, "files.url: memory://weir is in each"),
    "access mode": ({"files": {"volume": {"accessMode": "Any"}}}, "/files/volume/accessMode"),
    "service type": ({"controlplane": {"service": {"type": "Ingress"}}}, "/service/type"),
    "service port": ({"controlplane": {"service": {"port": 70000}}}, "/service/port"),
    "label that the chart selects by": (
        {"commonLabels": {"app.kubernetes.io/component": "ml"}},
        "app.kubernetes.io/component",
    ),
    "label that is a number": ({"commonLabels": {"team": 1}}, "/commonLabels/team"),
    "memory": ({"operator": {"resources": {"limits": {"memory": "lots"}}}}, "/limits/memory"),
    "memory in capital K": (
        {"operator": {"resources": {"limits": {"memory": "10K"}}}},
        "/limits/memory",
    ),
    "less than no CPU": ({"operator": {"resources": {"limits": {"cpu": -1}}}}, "/limits/cpu"),
    "size in capital K": ({"files": {"volume": {"size": "10K"}}}, "/files/volume/size"),
    "user beyond all": (
        {"redis": {"inChart": {"runAsUser": 2**31}}},
        "/redis/inChart/runAsUser",
    ),
    "label that is a sentence": ({"commonLabels": {"team": "my team"}}, "/commonLabels/team"),
    "label's name": ({"commonLabels": {"my team": "a"}}, "'my team' does not match"),
    "label that ends the operator": (
        {"monitoring": {"podMonitor": {"labels": {"release": "kube prometheus"}}}},
        "/podMonitor/labels/release",
    ),
    "node that cannot be": (
        {"controlplane": {"nodeSelector": {"pool": "a/b"}}},
        "/controlplane/nodeSelector/pool",
    ),
    "resources": ({"operator": {"resources": {"limit": {}}}}, "'limit' not allowed"),
    "variable without name": ({"operator": {"extraEnv": [{"value": "1"}]}}, "/operator/extraEnv/0"),
    "variable that the chart sets": (
        {"operator": {"extraEnv": [{"name": "WEIR_OPERATOR_PORT", "value": "1"}]}},
        "operator.extraEnv: WEIR_OPERATOR_PORT is set already",
    ),
    "variable that a setting sets": (
        {
            "controlplane": {
                "settings": {"poll_s": 1},
                "extraEnv": [{"name": "weir_poll_s", "value": "2"}],
            }
        },
        "controlplane.extraEnv: weir_poll_s is set already",
    ),
    "variable given twice": (
        {"operator": {"extraEnv": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
        "operator.extraEnv: A is set already",
    ),
    "namespace that cannot be": (
        {"operator": {"settings": {"namespaces": ["search", "Team_A"]}}},
        "/operator/settings/namespaces/1",
    ),
    "namespaces in one line": (
        {"operator": {"settings": {"namespaces": ["search,ads"]}}},
        "/operator/settings/namespaces/0",
    ),
    "create": ({"monitoring": {"podMonitor": {"create": True}}}, "/podMonitor/create"),
    "interval": ({"monitoring": {"podMonitor": {"interval": "15"}}}, "/podMonitor/interval"),
    "peer": ({"networkPolicy": {"clients": [{"namespace": "a"}]}}, "/networkPolicy/clients/0"),
    "address": ({"networkPolicy": {"apiServer": {"cidrs": ["10.0.0.1"]}}}, "/apiServer/cidrs/0"),
    "no ports": ({"networkPolicy": {"dns": {"ports": []}}}, "/networkPolicy/dns/ports"),
    "flag as text": ({"uninstall": {"deleteData": "yes"}}, "/uninstall/deleteData"),
    "redis as text": ({"redis": {"enabled": "no"}}, "/redis/enabled"),
    "key of the database's password": ({"database": {"key": "password"}}, "database.key: password"),
    "key of Redis's password": ({"redis": {"key": "password"}}, "redis.key: password"),
    "resources of hooks": ({"hooks": {"resources": {"limit": {}}}}, "'limit' not allowed"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_value_is_refused_by_name(helm: Helm, name: str) -> None:
    values, said = BAD[name]
    with pytest.raises(HelmError) as refused:
        helm.render(values)
    assert said in str(refused.value)


def sections(node: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every part of the values that templates look into."""
    for name, inner in node["properties"].items():
        if "properties" in inner or inner.get("$ref") == "#/definitions/image":
            yield (*path, name)
            yield from sections({"properties": {}, **inner}, (*path, name))


@pytest.mark.parametrize("path", list(sections(SCHEMA)), ids=".".join)
def test_a_section_without_its_lines_is_refused_by_name(helm: Helm, path: tuple[str, ...]) -> None:
    """As when all below it is a comment: it is null then, and a template said "nil pointer"."""
    values: Any = None
    for name in reversed(path):
        values = {name: values}
    with pytest.raises(HelmError, match=f"missing property '{path[-1]}'"):
        helm.render(values)


def filled(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every value that the chart fills in with one thing, or with ports."""
    for name, inner in values.items():
        if isinstance(inner, dict):
            if name != "resources" and path[-1:] != ("dashboards",):
                yield from filled(inner, (*path, name))
        elif inner not in ("", []) and name not in {"clients", "monitoring"}:
            yield (*path, name)


@pytest.mark.parametrize(
    "path", list(filled(yaml.safe_load((CHART / "values.yaml").read_text()))), ids=".".join
)
def test_a_value_that_is_missing_is_refused_by_name(helm: Helm, path: tuple[str, ...]) -> None:
    """Null, or of an older chart by --reuse-values: policies went, or had rules without ports."""
    values: Any = None
    for name in reversed(path):
        values = {name: values}
    with pytest.raises(HelmError, match=f"missing property '{path[-1]}'"):
        helm.render(values)


def test_settings_whose_lines_are_all_comments_are_none(
    helm: Helm, rendered: Mapping[str, list[Manifest]]
) -> None:
    given = {
        **EXTERNAL,  # without Secrets that each rendering makes anew
        "controlplane": {"settings": None},
        "operator": {"settings": None},
        "images": {"registry": None},
    }
    for component in ("operator", "controlplane"):
        place = ("Deployment", f"weir-{component}")
        assert named(helm.render(given), *place) == named(rendered["external"], *place)


class OneOfEachKey(yaml.SafeLoader):
    """Reads as kustomize does, which refuses a second key in a map."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(problem=f"more than one {twice}")
        return super().construct_mapping(node, deep=deep)


def test_a_label_or_annotation_of_the_charts_may_be_given_another_value(helm: Helm) -> None:
    """Once each: Flux and kustomize read what helm renders, and refuse a second key."""
    given = {
        "commonLabels": {"app.kubernetes.io/part-of": "search", "app.kubernetes.io/version": "9"},
        "operator": {"podAnnotations": {"kubectl.kubernetes.io/default-container": "proxy"}},
        "controlplane": {"podAnnotations": {"kubectl.kubernetes.io/default-container": "proxy"}},
        "monitoring": {
            "podMonitor": {"create": "always", "labels": {"app.kubernetes.io/part-of": "kube"}},
            "prometheusRule": {"create": "always", "labels": {"app.kubernetes.io/part-of": "kube"}},
            "dashboards": {"labels": {"app.kubernetes.io/part-of": "grafana"}},
        },
    }
    place = ("template", "weir", CHART, "--kube-version", KUBERNETES)
    text = helm.run(*place, values=given)
    found = [item for item in yaml.load_all(text, OneOfEachKey) if item]
    parts = {
        item["kind"]: item["metadata"]["labels"]["app.kubernetes.io/part-of"] for item in found
    }
    assert parts["Deployment"] == "search"
    assert parts["PodMonitor"] == parts["PrometheusRule"] == "kube"
    pod = named(found, "Deployment", "weir-operator")["spec"]["template"]["metadata"]
    assert pod["annotations"] == {"kubectl.kubernetes.io/default-container": "proxy"}
    assert pod["labels"]["app.kubernetes.io/version"] == "9"


def test_a_slash_at_the_end_of_the_url_is_none_of_a_path(helm: Helm) -> None:
    """`helm test` asked a healthy release for //readyz, which is nowhere."""
    place = ("template", "weir", CHART, "--kube-version", KUBERNETES)
    text = helm.run(*place, values={"controlplane": {"url": "https://weir.example.com/"}})
    assert "https://weir.example.com" in text
    assert "https://weir.example.com/" not in text


NAMES = {
    *("name", "namespace", "key", "secretName", "claimName", "cidr", "priorityClassName"),
    *("storageClassName", "image"),
}


def texts(value: object) -> Iterator[tuple[str, object]]:
    """Every name, namespace, address, label and annotation in a manifest."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in NAMES:
                yield key, inner
            elif key in {"labels", "matchLabels", "annotations"}:
                yield from inner.items()
            else:
                yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def test_a_release_and_its_namespace_may_be_numbers(helm: Helm) -> None:
    """As those of previews are, by a pull request or a commit: YAML reads 12e3 as one too."""
    place = ("--namespace", "1234", "--set", "fullnameOverride=weir")
    for name in ("2026", "12e3"):
        text = helm.run("template", name, CHART, *place, "--kube-version", KUBERNETES)
        found = [pair for item in yaml.safe_load_all(text) for pair in texts(item)]
        assert [pair for pair in found if not isinstance(pair[1], str)] == []
        assert {("namespace", "1234"), ("app.kubernetes.io/instance", name)} <= set(found)


def test_what_is_there_already_may_be_called_anything(helm: Helm) -> None:
    """Its name is somebody else's: a number, or a word of YAML."""
    given = {
        "database": {"existingSecret": "1234", "key": "123"},
        "redis": {"existingSecret": "12e3", "key": "on"},
        "adminKey": {"existingSecret": "999", "key": "1e3"},
        "files": {"existingSecret": "4242", "volume": {"existingClaim": "07"}},
        "networkPolicy": {"apiServer": {"cidrs": ["::/0"]}},
        "operator": {"priorityClassName": "100"},
        "controlplane": {"priorityClassName": "1e2"},
    }
    found = [pair for item in helm.render(given) for pair in texts(item)]
    assert [pair for pair in found if not isinstance(pair[1], str)] == []
    said = {value for _, value in found}
    assert {"1234", "123", "12e3", "on", "999", "1e3", "4242", "07", "::/0", "100", "1e2"} <= said


def test_a_url_may_be_under_any_key_of_a_secret_of_ones_own(helm: Helm) -> None:
    """Only that of the chart has a password of its own beside it."""
    given = {
        "database": {"existingSecret": "postgres", "key": "password"},
        "redis": {"existingSecret": "redis", "key": "password"},
    }
    told = environment(named(helm.render(given), "Deployment", "weir-controlplane"))
    for name, secret in (("WEIR_DATABASE_URL", "postgres"), ("WEIR_REDIS_URL", "redis")):
        assert told[name]["secretKeyRef"] == {"name": secret, "key": "password"}
    assert helm.render({"redis": {"enabled": False, "key": "password"}})


def test_a_storage_class_may_be_called_anything(helm: Helm) -> None:
    given = {
        "fullnameOverride": "true",
        "database": {"inChart": {"image": "1234", "storage": {"storageClassName": "123"}}},
        "redis": {"inChart": {"image": "12"}},
        "files": {"volume": {"storageClassName": "1e3"}},
        "monitoring": {"prometheusRule": {"create": "always"}},
    }
    found = [pair for item in helm.render(given) for pair in texts(item)]
    assert [pair for pair in found if not isinstance(pair[1], str)] == []
    wanted = {("storageClassName", "123"), ("storageClassName", "1e3"), ("image", "1234")}
    assert wanted <= set(found)


def test_a_user_id_stays_a_whole_number(helm: Helm) -> None:
    """Those of OpenShift are large, and helm reads numbers of files as fractions: 1.00065e+09."""
    given = {"inChart": {"runAsUser": 1_000_650_000}}
    manifests = helm.render({"database": given, "redis": given})
    for kind, name in (("StatefulSet", "weir-postgresql"), ("Deployment", "weir-redis")):
        found = named(manifests, kind, name)["spec"]["template"]["spec"]["securityContext"]
        assert {type(found[key]) for key in ("runAsUser", "runAsGroup", "fsGroup")} == {int}


def test_images_may_be_on_any_registry_and_port(helm: Helm) -> None:
    """Below a registry for all, and with one of their own."""
    for registry, repository in (
        ("registry.test:5000/team/weir/", "weir-operator"),
        ("localhost:5000", "a/b_c"),
        ("", "registry.test:5000/team/weir-operator"),
        ("", "weir-operator"),
    ):
        images = {"registry": registry, "operator": {"repository": repository, "tag": "1"}}
        pod = named(helm.render({"images": images}), "Deployment", "weir-operator")["spec"]
        (container,) = pod["template"]["spec"]["containers"]
        assert container["image"] == f"{registry.rstrip('/')}/{repository}:1".lstrip("/")


def test_a_pod_is_given_the_time_that_its_uploads_are(helm: Helm) -> None:
    """The kubelet ended at 45 s what a setting let run on."""
    for settings, seconds in (({}, 45), ({"shutdown_grace_s": 300}, 325)):
        manifests = helm.render({"controlplane": {"settings": settings}})
        pod = named(manifests, "Deployment", "weir-controlplane")["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] == seconds


@pytest.mark.parametrize("name", ["2026", "weir.prod"])
def test_a_release_that_no_service_can_be_named_after_is_refused(helm: Helm, name: str) -> None:
    with pytest.raises(HelmError, match="set fullnameOverride"):
        helm.run("template", name, CHART, "--kube-version", KUBERNETES)


def test_the_chart_passes_helm_lint(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm.run("lint", CHART, "--strict")


def test_every_value_has_a_description_and_a_default() -> None:
    undescribed: list[str] = []
    unknown: list[str] = []

    def compare(schema: Mapping[str, Any], values: object, path: str) -> None:
        resolved = schema
        if "$ref" in schema:
            resolved = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]] | schema
        if not resolved.get("description"):
            undescribed.append(path)
        properties = resolved.get("properties")
        if isinstance(values, dict) and properties and not path.endswith(("settings", "resources")):
            unknown.extend(f"{path}.{key}" for key in set(properties) ^ set(values))
            for key in set(properties) & set(values):
                compare(properties[key], values[key], f"{path}.{key}")

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for key in values:
        compare(SCHEMA["properties"][key], values[key], key)
    assert set(SCHEMA["properties"]) - set(values) == {"global"}
    assert undescribed == []
    assert unknown == []


def test_what_the_chart_takes_from_the_code_is_fresh() -> None:
    command = [sys.executable, "-m", "scripts.generate_chart", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def environment(deployment: Manifest) -> dict[str, Any]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container["env"]}


def test_settings_reach_the_processes_as_they_read_them(
    rendered: Mapping[str, list[Manifest]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from weir_controlplane.settings import Settings
    from weir_operator.settings import OperatorSettings

    told = environment(named(rendered["everything"], "Deployment", "weir-controlplane"))
    told |= environment(named(rendered["everything"], "Deployment", "weir-operator"))
    told["WEIR_DATABASE_URL"] = "postgresql+asyncpg://weir:secret@host/weir"
    told["WEIR_REDIS_URL"] = "redis://:secret@host:6379/0"
    for name, value in told.items():
        monkeypatch.setenv(name, value if isinstance(value, str) else "weir-0")
    known = {f"WEIR_{name.upper()}" for name in Settings.model_fields}
    known |= {f"WEIR_OPERATOR_{name.upper()}" for name in OperatorSettings.model_fields}
    assert {name for name in told if name.startswith("WEIR_")} <= known
    controlplane = Settings()
    operator = OperatorSettings()  # type: ignore[call-arg] # from the environment
    assert (controlplane.chunk_lines, controlplane.poll_s) == (16, 0.5)
    assert (controlplane.host, controlplane.port) == ("0.0.0.0", 8080)  # noqa: S104
    assert controlplane.models == ("a", "b")
    assert controlplane.public_url == operator.control_plane_url
    assert operator.namespaces == ("ads", "search")
    assert operator.lease_name == "weir-operator"
    assert operator.defaults().image_pull_secrets == ("pull",)  # of registry.test, as the image
    assert operator.defaults().pod_monitor_labels == {"release": "prometheus"}
    assert operator.control_plane_url == "http://weir-controlplane.weir-system.svc:8080"
    assert operator.vllm_image == "registry.test/team/weir-agent:0.1.0"


def test_a_variable_of_ones_own_follows_the_charts(helm: Helm) -> None:
    given = {"extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]}
    manifests = helm.render({"operator": given, "controlplane": given})
    for component in ("operator", "controlplane"):
        told = environment(named(manifests, "Deployment", f"weir-{component}"))
        assert list(told)[-1] == "HTTPS_PROXY"
        assert told["HTTPS_PROXY"] == "http://proxy:3128"


def test_links_lead_where_the_settings_say(helm: Helm) -> None:
    url = "https://weir.example.com"
    manifests = helm.render({"controlplane": {"settings": {"public_url": url}}})
    deployment = named(manifests, "Deployment", "weir-controlplane")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    given = [item["value"] for item in container["env"] if item["name"] == "WEIR_PUBLIC_URL"]
    assert given == [url]
