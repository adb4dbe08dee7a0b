"""Who may do what on the cluster, and whom the control plane believes."""

from __future__ import annotations

import re
from collections.abc import Iterable

import httpx
import pytest
from openai import NotFoundError

from e2e.support.jobs import until_complete
from e2e.support.manifests import SERVICE, batch_job
from e2e.support.platform import SHOP, SYSTEM, Platform
from tests.chart import rbac_table

LINE = re.compile(r"^(?P<resource>\S*)\s+\[.*?\]\s+\[(?P<names>.*?)\]\s+\[(?P<verbs>.*?)\]$")
UNKNOWN_PROCESS = 1_000_000
"""An incarnation that nobody has: any replica asks the database, which refuses it."""
Right = tuple[str, str, str]
"""A resource with its API group, an object's name or none for all, a verb."""


def rights(platform: Platform, namespace: str, account: str, *, where: str) -> set[Right]:
    """What `kubectl auth can-i --list` says that a ServiceAccount may do in a namespace."""
    user = f"system:serviceaccount:{namespace}:{account}"
    said = platform.api.kubectl.inside(where).run("auth", "can-i", "--list", f"--as={user}")
    found: set[Right] = set()
    for line in said.stdout.splitlines()[1:]:
        match = LINE.match(line.rstrip())
        if match is None:
            raise ValueError(f"kubectl auth can-i --list printed {line!r}")
        for name in match["names"].split() or [""]:
            found |= {(match["resource"], name, verb) for verb in match["verbs"].split()}
    return found


def reviewed(rows: Iterable[rbac_table.Row]) -> set[Right]:
    """The same from the table of docs/kubernetes.md."""
    return {
        (qualified(resource, group), name, verb)
        for row in rows
        for group in row.groups
        for resource in row.resources
        for name in row.names or ("",)
        for verb in row.verbs
    }


def qualified(resource: str, group: str) -> str:
    """A resource as kubectl names it: RESOURCE.GROUP/SUBRESOURCE."""
    plain, slash, subresource = resource.partition("/")
    return (plain if group == "core" else f"{plain}.{group}") + slash + subresource


@pytest.mark.parametrize("account", ["weir-operator", "weir-controlplane"])
def test_a_service_account_may_do_what_the_table_says(platform: Platform, account: str) -> None:
    table = [row for row in rbac_table.read() if row.account == account]
    everywhere = [row for row in table if row.scope == "cluster"]
    for where, rows in ((SYSTEM, table), (SHOP, everywhere)):
        anybody = rights(platform, SHOP, "default", where=where)
        assert rights(platform, SYSTEM, account, where=where) - anybody == reviewed(rows)


def test_the_account_of_a_services_pods_has_no_right(service: Platform) -> None:
    for where in (SYSTEM, SHOP):
        anybody = rights(service, SHOP, "default", where=where)
        assert rights(service, SHOP, SERVICE, where=where) == anybody


def token(platform: Platform, account: str, *, pod: str | None = None, audience: str) -> str:
    """A token as the kubelet would give it to a pod of the account; or without any pod."""
    options = [f"--audience={audience}", "--duration=10m"]
    if pod is not None:
        options += ["--bound-object-kind=Pod", f"--bound-object-name={pod}"]
    return platform.shop.run("create", "token", account, *options).stdout.strip()


def sync(platform: Platform, agent: str, bearer: str | None) -> int:
    """The status of a sync as an agent of the shop. It is of no known process."""
    body = {
        "boot_id": "nobody",
        "incarnation": UNKNOWN_PROCESS,
        "sequence": 1,
        "service": f"{SHOP}/{SERVICE}",
        "state": "starting",
    }
    url = f"{platform.control_plane}/internal/v1/agents/{agent}/sync"
    headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
    return httpx.post(url, json=body, headers=headers, timeout=30, trust_env=False).status_code


def test_a_pod_syncs_with_its_own_token_alone(service: Platform) -> None:
    first, second = (pod["metadata"]["name"] for pod in service.replicas())
    agent = f"{SHOP}.{first}"
    own = token(service, SERVICE, pod=first, audience="weir")
    others = token(service, SERVICE, pod=second, audience="weir")
    assert sync(service, agent, own) == 409  # believed: it is only not the process that syncs
    assert sync(service, agent, None) == 401
    assert sync(service, agent, others) == 403
    assert sync(service, agent, token(service, SERVICE, audience="weir")) in (401, 403)
    assert sync(service, agent, token(service, "default", audience="weir")) in (401, 403)
    assert sync(service, agent, token(service, SERVICE, pod=first, audience="other")) == 401


def test_a_pods_token_opens_nothing_else(service: Platform) -> None:
    (first, *_) = (pod["metadata"]["name"] for pod in service.replicas())
    bearer = token(service, SERVICE, pod=first, audience="weir")
    for path in ("/v1/batches", "/v1/files", "/internal/v1/agents", "/admin/v1/keys"):
        answer = httpx.get(
            f"{service.control_plane}{path}",
            headers={"Authorization": f"Bearer {bearer}"},
            timeout=30,
            trust_env=False,
        )
        assert answer.status_code in (401, 403), path


def test_a_tenant_cannot_read_anothers_batch(service: Platform, key: str) -> None:
    service.shop.apply(*batch_job("private", lines=2))
    job = until_complete(service.shop, "private")
    batch_id = job["status"]["batchID"]
    with service.batches(key) as client:
        output = client.batches.retrieve(batch_id).output_file_id
        assert output is not None
        assert client.files.content(output).text
    with service.batches(service.tenant_key("another")) as client:
        assert client.batches.list(limit=1).data == []
        with pytest.raises(NotFoundError):
            client.batches.retrieve(batch_id)
        with pytest.raises(NotFoundError):
            client.files.content(output)


@pytest.mark.parametrize("namespace", [SYSTEM, SHOP])
def test_pods_that_are_not_restricted_are_refused(platform: Platform, namespace: str) -> None:
    container = {"name": "a", "image": "localhost/pause:1", "securityContext": {"privileged": True}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "privileged"},
        "spec": {"containers": [container]},
    }
    refused = platform.api.kubectl.inside(namespace).try_apply(pod)
    assert not refused.ok
    assert 'violates PodSecurity "restricted' in refused.stderr
