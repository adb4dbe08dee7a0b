"""The API server itself refuses bad manifests, by field and remedy, and takes the examples."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiException, CustomObjectsApi
from kubernetes.config import new_client_from_config

from e2e.cluster.api_server import ApiServer
from e2e.cluster.kubectl import Kubectl
from tests.operator.corpus.manifests import ALLOWED_CHANGES, BAD, Bad, changed, good
from weir_operator.api.crd import DEFINITIONS, GROUP, VERSION, Definition, manifest

pytestmark = pytest.mark.kubernetes
EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))
DRY_RUN = ("--dry-run=server", "--validate=strict")


PLURALS = {definition.kind: definition.plural for definition in DEFINITIONS}


def renamed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest under a name of its own: the tests share a namespace."""
    return {**manifest, "metadata": {**manifest["metadata"], "name": f"s-{secrets.token_hex(4)}"}}


@pytest.fixture(scope="module")
def inside(api_server: ApiServer) -> Kubectl:
    """A namespace for all of these tests: most only ask what would happen."""
    name = f"admission-{secrets.token_hex(4)}"
    api_server.kubectl.run("create", "namespace", name)
    return api_server.kubectl.inside(name)


class Server:
    """The API server without kubectl, whose own checks would speak first."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        client = new_client_from_config(config_file=str(kubeconfig))  # type: ignore[no-untyped-call]
        self._api: Any = CustomObjectsApi(client)
        self._namespace = namespace

    def create(self, manifest: Mapping[str, Any], *, keep: bool = False) -> dict[str, Any]:
        """Creates an object, for good only with ``keep``."""
        made: dict[str, Any] = self._api.create_namespaced_custom_object(
            GROUP, VERSION, self._namespace, PLURALS[manifest["kind"]], manifest,
            field_validation="Strict", **({} if keep else {"dry_run": "All"}),
        )  # fmt: skip
        return made

    def replace(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """The object as it would be replaced; raises ApiException when it could not be."""
        found: dict[str, Any] = self._api.replace_namespaced_custom_object(
            GROUP, VERSION, self._namespace, PLURALS[manifest["kind"]],
            manifest["metadata"]["name"], manifest, field_validation="Strict", dry_run="All",
        )  # fmt: skip
        return found


@pytest.fixture(scope="module")
def server(api_server: ApiServer, inside: Kubectl) -> Server:
    assert inside.namespace is not None
    return Server(api_server.kubeconfig, inside.namespace)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_a_bad_manifest_is_refused_by_field_and_remedy(server: Server, bad: Bad) -> None:
    if bad.before is None:
        with pytest.raises(ApiException) as refused:
            server.create(bad.manifest)
    else:
        before = server.create(renamed(bad.before), keep=True)
        with pytest.raises(ApiException) as refused:
            server.replace({**bad.manifest, "metadata": before["metadata"]})
    said = json.loads(refused.value.body or "{}")["message"]
    assert bad.field in said, said
    assert bad.remedy in said, said


def test_kubectl_shows_the_refusal(inside: Kubectl) -> None:
    bad = next(bad for bad in BAD if bad.field == "rollout.maxSurge")
    refused = inside.try_apply(bad.manifest, options=DRY_RUN)
    assert not refused.ok
    assert "rollout.maxSurge must be a number of replicas" in refused.stderr
    misspelt = next(bad for bad in BAD if bad.field == "priorty")
    refused = inside.try_apply(misspelt.manifest, options=DRY_RUN)
    assert "unknown field" in refused.stderr
    assert "priorty" in refused.stderr


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_accepted(inside: Kubectl, path: Path) -> None:
    done = inside.run("apply", "-f", path, *DRY_RUN)
    assert "created (server dry run)" in done.stdout


@pytest.mark.parametrize(("kind", "before", "after"), ALLOWED_CHANGES)
def test_what_may_change_may_change(
    server: Server, kind: str, before: dict[str, object], after: dict[str, object]
) -> None:
    first = server.create(renamed(changed(good(kind), before)), keep=True)
    wanted = changed(first, after)
    assert server.replace(wanted)["metadata"]["generation"] > first["metadata"]["generation"]


def test_defaults_are_filled_in(inside: Kubectl) -> None:
    first = renamed(good("LLMService"))
    inside.apply(first)
    found = inside.get("llmsvc", first["metadata"]["name"])
    assert found is not None
    spec = found["spec"]
    assert spec["replicas"] == 1
    assert spec["engine"] == {"backend": "vllm", "tensorParallelSize": 1}
    assert spec["rollout"]["maxSurge"] == 1
    assert spec["colocation"]["forecast"] == {"window": "1h", "sigma": 2, "method": "auto"}
    job = renamed(good("BatchJob"))
    inside.apply(job)
    found = inside.get("bj", job["metadata"]["name"])
    assert found is not None
    assert (found["spec"]["completionWindow"], found["spec"]["suspend"]) == ("24h", False)


def test_the_scale_subresource_scales(inside: Kubectl) -> None:
    first = renamed(good("LLMService"))
    inside.apply(first)
    name = first["metadata"]["name"]
    inside.run("scale", f"llmservice/{name}", "--replicas=3")
    found = inside.get("llmservice", name)
    assert found is not None
    assert found["spec"]["replicas"] == 3
    inside.apply(first)  # the manifest leaves replicas out: the scaled number stays
    found = inside.get("llmservice", name)
    assert found is not None
    assert found["spec"]["replicas"] == 3


def test_applying_an_unchanged_manifest_on_the_server_writes_nothing(inside: Kubectl) -> None:
    first = renamed(good("BatchJob"))
    versions = []
    for _ in range(2):
        inside.apply(first, options=("--server-side",))
        found = inside.get("bj", first["metadata"]["name"])
        assert found is not None
        versions.append(found["metadata"]["resourceVersion"])
    assert versions[0] == versions[1]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda item: item.kind)
def test_columns_and_short_names(inside: Kubectl, definition: Definition) -> None:
    first = renamed(good(definition.kind))
    inside.apply(first)
    shown = inside.run("get", definition.short, first["metadata"]["name"]).stdout
    heads = shown.splitlines()[0].split()
    wanted = [column.name.upper() for column in definition.columns if not column.wide]
    assert heads == ["NAME", *wanted]


def test_an_expected_end_is_shown(inside: Kubectl) -> None:
    job = renamed(good("BatchJob"))
    inside.apply(job)
    name, eta = job["metadata"]["name"], "2100-01-02T03:04:00Z"
    patch = json.dumps({"status": {"eta": eta}})
    inside.run("patch", "bj", name, "--subresource=status", "--type=merge", "--patch", patch)
    shown = inside.run("get", "bj", name, "--output=wide").stdout
    assert eta in shown.split(), shown


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda item: item.kind)
def test_explain_speaks_of_every_field(inside: Kubectl, definition: Definition) -> None:
    shown = inside.run("explain", definition.plural, "--recursive").stdout
    version = manifest(definition)["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert [name for name in spec if name not in shown] == []
    told = inside.run("explain", f"{definition.plural}.spec").stdout
    assert "<no description>" not in told
    assert "<empty>" not in told
