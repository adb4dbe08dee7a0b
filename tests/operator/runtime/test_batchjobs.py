"""BatchJobs on a real API server and a real control plane: one batch each, whatever restarts."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.kubectl import Kubectl
from tests.controlplane.agent_sim import SimAgent
from tests.operator.runtime.test_operator import batchjob, condition, llmservice
from tests.support.operator_process import PATIENT_LEASE, OperatorProcess
from tests.support.stack import Component
from tests.support.waiting import eventually
from weir_cli.api import Api
from weir_cli.models import KeyRequest
from weir_cli.settings import ClientSettings

pytestmark = pytest.mark.kubernetes

DEADLINE_S = 2
TIMEOUT_S = 60
PATIENCE = "--timeout=110s"
"""Of kubectl: it returns as soon as there is what it waits for."""


@dataclass
class World:
    """A control plane (SQLite, no Redis) and an operator for all namespaces."""

    controlplane: Component
    operator: OperatorProcess
    admin_key: str

    def http(self, key: str | None = None) -> httpx.Client:
        headers = {"authorization": f"Bearer {key or self.admin_key}"}
        return httpx.Client(
            base_url=self.controlplane.url, headers=headers, timeout=TIMEOUT_S, trust_env=False
        )

    def jobs(self, namespace: str) -> dict[str, dict[str, Any]]:
        """What the control plane knows of a namespace's BatchJobs, by name."""
        with self.http() as client:
            page = client.get("/internal/v1/batchjobs").raise_for_status().json()
        return {item["name"]: item for item in page["data"] if item["namespace"] == namespace}

    def services(self, namespace: str) -> dict[str, set[str]]:
        """The pods that it knows of a namespace's services, by name."""
        with self.http() as client:
            page = client.get("/internal/v1/services").raise_for_status().json()
        return {
            item["name"]: {pod["uid"] for pod in item["pods"]}
            for item in page["data"]
            if item["namespace"] == namespace
        }

    def agent_key(self, agent_id: str) -> str:
        settings = {"url": self.controlplane.url, "api_key": self.admin_key}
        api = Api(ClientSettings.model_validate(settings))
        try:
            return api.create_key(KeyRequest(scope="agent", agent_id=agent_id)).key
        finally:
            api.close()


@pytest.fixture(scope="module")
def world(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    controlplane = Component(
        "controlplane",
        folder,
        {
            "WEIR_DATA_DIR": str(folder / "controlplane"),
            "WEIR_DEFAULT_TENANT": "team",
            "WEIR_MODELS": "m",
            "WEIR_CHUNK_LINES": "16",
            "WEIR_POLL_S": "0.1",
        },
    )
    controlplane.environment["WEIR_PUBLIC_URL"] = controlplane.url
    key_file = folder / "controlplane" / "admin.key"
    operator = OperatorProcess(
        "operator-0",
        folder,
        kubeconfig=api_server.kubeconfig,
        control_plane_url=controlplane.url,
        settings={
            **PATIENT_LEASE,
            "CONTROL_PLANE_TOKEN_FILE": str(key_file),
            "FINALIZER_DEADLINE_S": str(DEADLINE_S),
            "CONTROL_PLANE_TIMEOUT_S": "2",
        },
    )
    try:
        operator.start(wait=False)  # without a control plane it starts all the same
        controlplane.start()
        assert eventually(operator.ready), operator
        yield World(controlplane, operator, key_file.read_text().strip())
    finally:
        operator.close()
        controlplane.close()


def lines(count: int) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    return "".join(
        json.dumps(
            {"custom_id": f"l{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        )
        + "\n"
        for n in range(count)
    )


def lined(name: str = "nightly", *, count: int = 20, **spec: object) -> dict[str, Any]:
    """A BatchJob with so many lines."""
    return batchjob(name, **{"input": {"inline": lines(count)}, **spec})


def status(kubectl: Kubectl, name: str = "nightly") -> dict[str, Any]:
    found = kubectl.get("batchjob", name)
    return {} if found is None else dict(found.get("status", {}))


def has_batch(kubectl: Kubectl, name: str) -> bool:
    return "batchID" in status(kubectl, name)


def events(kubectl: Kubectl) -> list[str]:
    """The reasons of the namespace's Events."""
    return kubectl.run("get", "events", "--output=jsonpath={.items[*].reason}").stdout.split()


def is_gone(kubectl: Kubectl, name: str = "nightly") -> bool:
    return kubectl.get("batchjob", name) is None


async def compute(world: World, namespace: str, name: str) -> None:
    """Runs an agent until the batch of a BatchJob is completed."""
    agent_id = f"{namespace}.chat-0"
    headers = {"authorization": f"Bearer {world.agent_key(agent_id)}"}
    async with (
        asyncio.timeout(110),
        httpx.AsyncClient(
            base_url=world.controlplane.url, headers=headers, timeout=TIMEOUT_S
        ) as client,
    ):
        agent = SimAgent(client, agent_id, service=f"{namespace}/chat", model="m")
        while world.jobs(namespace)[name]["status"] != "completed":
            await agent.work()
            await asyncio.sleep(0.05)


def answered(uri: str) -> list[str]:
    """The lines of a result, by what a status says of it alone: a link needs no key."""
    if uri.startswith("file://"):
        text = Path(uri.removeprefix("file://")).read_text()
    else:
        text = httpx.get(uri, timeout=TIMEOUT_S, trust_env=False).raise_for_status().text
    return [str(json.loads(line)["custom_id"]) for line in text.splitlines()]


NEVER = "9999-12-31T23:59:59.9999999Z"
"""The last moment that .NET knows, which rounds to the year 10000."""


def test_a_deadline_that_never_comes_silences_no_other_batch(
    world: World, kubectl: Kubectl, namespace: str
) -> None:
    kubectl.apply(llmservice(), lined("endless", deadline=NEVER))
    assert eventually(lambda: "endless" in world.jobs(namespace)), world.operator
    kubectl.apply(lined("nightly"))
    for name in ("nightly", "endless"):
        assert eventually(partial(has_batch, kubectl, name), within_s=60), world.operator
        assert condition(kubectl, "batchjob", name, "Accepted")["status"] == "True"
    for name in ("nightly", "endless"):
        kubectl.run("delete", "batchjob", name, PATIENCE)


async def test_one_batch_over_restarts_then_complete_then_gone(
    world: World, kubectl: Kubectl, namespace: str
) -> None:
    kubectl.apply(llmservice(), lined(count=40))
    assert eventually(lambda: status(kubectl).get("batchID")), world.operator
    batch_id = status(kubectl)["batchID"]
    world.operator.send(signal.SIGKILL)
    world.operator.wait(60)
    kubectl.inside("default").run("delete", "lease", world.operator.lease)  # else it waits for it
    world.operator.start()
    assert eventually(world.operator.leads), world.operator
    await asyncio.sleep(1)
    assert status(kubectl)["batchID"] == batch_id
    assert {name: job["batch_id"] for name, job in world.jobs(namespace).items()} == {
        "nightly": batch_id
    }
    found = kubectl.get("batchjob", "nightly")
    assert found is not None
    assert found["metadata"]["finalizers"] == ["weir.dev/batch"]

    await compute(world, namespace, "nightly")
    kubectl.run("wait", "--for=condition=Complete", "batchjob/nightly", PATIENCE)
    done = status(kubectl)
    assert done["counts"] == {"total": 40, "completed": 40, "failed": 0}
    assert answered(done["outputURI"]) == [f"l{n}" for n in range(40)]
    assert eventually(lambda: "Completed" in events(kubectl)), events(kubectl)
    soon = '{"spec":{"ttlSecondsAfterFinished":1}}'
    kubectl.run("patch", "batchjob", "nightly", "--type=merge", "-p", soon)
    assert eventually(lambda: is_gone(kubectl)), world.operator
    assert eventually(lambda: "nightly" not in world.jobs(namespace)), world.jobs(namespace)


def test_suspend_works_both_ways(world: World, kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(llmservice(), lined(suspend=True))
    suspended = ("batchjob", "nightly", "Suspended")
    assert eventually(lambda: condition(kubectl, *suspended).get("status") == "True")
    assert "batchID" not in status(kubectl)
    resume, pause = ('{"spec":{"suspend":false}}', '{"spec":{"suspend":true}}')
    kubectl.run("patch", "batchjob", "nightly", "--type=merge", "-p", resume)
    assert eventually(lambda: status(kubectl).get("batchID")), world.operator
    assert eventually(lambda: condition(kubectl, *suspended).get("status") == "False")
    kubectl.run("patch", "batchjob", "nightly", "--type=merge", "-p", pause)
    assert eventually(lambda: world.jobs(namespace)["nightly"]["suspended"]), world.operator
    assert eventually(lambda: condition(kubectl, *suspended).get("status") == "True")


def test_a_job_suspended_from_birth_is_resumed_without_its_config_map(
    world: World, kubectl: Kubectl, namespace: str
) -> None:
    named = {"configMapKeyRef": {"name": "lines", "key": "input.jsonl"}}
    given = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "lines"}}
    kubectl.apply({**given, "data": {"input.jsonl": lines(3)}})
    kubectl.apply(llmservice(), lined(input=named, suspend=True))
    assert eventually(lambda: "nightly" in world.jobs(namespace)), world.operator
    kubectl.run("delete", "configmap", "lines")
    changed = '{"spec":{"suspend":false,"priority":5}}'
    kubectl.run("patch", "batchjob", "nightly", "--type=merge", "-p", changed)
    assert eventually(lambda: status(kubectl).get("batchID")), world.operator
    assert eventually(lambda: status(kubectl).get("counts", {}).get("total") == 3), world.operator


def test_a_deadline_that_passes_is_said(world: World, kubectl: Kubectl) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=4)).isoformat(timespec="seconds")
    kubectl.apply(llmservice(), lined(deadline=soon))
    assert eventually(lambda: status(kubectl).get("batchID")), world.operator
    kubectl.run("wait", "--for=condition=AtRisk", "batchjob/nightly", PATIENCE)
    at_risk = ("batchjob", "nightly", "AtRisk")  # by forecast before, then for sure
    assert eventually(lambda: condition(kubectl, *at_risk)["reason"] == "DeadlinePassed")
    assert condition(kubectl, "batchjob", "nightly", "Failed")["status"] == "False"
    assert eventually(lambda: "DeadlinePassed" in events(kubectl)), events(kubectl)


def test_an_input_by_uri_is_read_and_another_controllers_job_left_alone(
    world: World, kubectl: Kubectl, tmp_path: Path
) -> None:
    (tmp_path / "input.jsonl").write_text(lines(7))
    prefix = {"tenant": "team", "prefix": tmp_path.as_uri(), "writable": True}
    with world.http() as client:
        client.post("/admin/v1/uri-prefixes", json=prefix).raise_for_status()
    by_uri = {"uri": f"{tmp_path.as_uri()}/input.jsonl"}
    elsewhere = {"uri": "file:///nowhere/input.jsonl"}
    kubectl.apply(
        llmservice(),
        lined(input=by_uri),
        lined("refused", input=elsewhere),
        lined("theirs", managedBy="kueue.x-k8s.io/multikueue"),
    )
    assert eventually(lambda: status(kubectl).get("counts", {}).get("total") == 7), world.operator
    kubectl.run("wait", "--for=condition=Failed", "batchjob/refused", PATIENCE)
    assert "input.uri" in condition(kubectl, "batchjob", "refused", "Failed")["message"]
    theirs = kubectl.get("batchjob", "theirs")
    assert theirs is not None
    assert "status" not in theirs
    assert "finalizers" not in theirs["metadata"]


async def test_results_are_copied_to_the_output_uri(
    world: World, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    folder = f"{tmp_path.as_uri()}/"
    with world.http() as client:
        prefix = {"tenant": "team", "prefix": tmp_path.as_uri(), "writable": True}
        client.post("/admin/v1/uri-prefixes", json=prefix).raise_for_status()
    kubectl.apply(llmservice(), lined(count=5, output={"uri": folder}))
    assert eventually(lambda: status(kubectl).get("batchID")), world.operator
    await compute(world, namespace, "nightly")
    assert eventually(lambda: str(status(kubectl).get("outputURI")).startswith(folder)), (
        status(kubectl),
        world.operator,
    )
    assert answered(status(kubectl)["outputURI"]) == [f"l{n}" for n in range(5)]


def test_deleting_cancels(world: World, kubectl: Kubectl) -> None:
    kubectl.apply(llmservice(), lined())
    assert eventually(lambda: status(kubectl).get("batchID")), world.operator
    batch_id = status(kubectl)["batchID"]
    kubectl.run("delete", "batchjob", "nightly", PATIENCE)
    assert is_gone(kubectl)
    assert eventually(partial(is_cancelled, world, batch_id))


def batch_status(world: World, batch_id: str) -> str:
    """The state of a batch as its tenant sees it."""
    settings = {"url": world.controlplane.url, "api_key": world.admin_key}
    api = Api(ClientSettings.model_validate(settings))
    try:
        key = api.create_key(KeyRequest(scope="tenant", tenant="team")).key
    finally:
        api.close()
    with world.http(key) as client:
        return str(client.get(f"/v1/batches/{batch_id}").raise_for_status().json()["status"])


def is_cancelled(world: World, batch_id: str) -> bool:
    return batch_status(world, batch_id) == "cancelled"


def test_pods_are_registered_and_released(world: World, kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(llmservice(replicas=2))

    def pods() -> set[str]:
        return {str(pod["metadata"]["uid"]) for pod in kubectl.list("pods")}

    assert eventually(lambda: len(pods()) == 2), world.operator
    assert eventually(lambda: world.services(namespace).get("chat") == pods()), world.operator
    kubectl.run("delete", "llmservice", "chat")
    assert eventually(lambda: "chat" not in world.services(namespace)), world.operator


def test_a_control_plane_that_is_away_holds_nothing_up_for_long(
    world: World, kubectl: Kubectl, namespace: str
) -> None:
    ends = kubectl.inside(f"{namespace}-ends")
    kubectl.run("create", "namespace", f"{namespace}-ends")
    ends.apply(llmservice(), lined("held"))
    kubectl.apply(llmservice(), lined("left"))
    assert eventually(lambda: status(kubectl, "left").get("batchID")), world.operator
    assert eventually(lambda: status(ends, "held").get("batchID")), world.operator
    batch_ids = [status(kubectl, "left")["batchID"], status(ends, "held")["batchID"]]
    world.controlplane.kill()
    try:
        kubectl.apply(lined("waits"), llmservice("other"))
        assert eventually(lambda: kubectl.get("deployment", "other")), world.operator
        kubectl.run("delete", "batchjob", "left", PATIENCE)
        assert is_gone(kubectl, "left")
        kubectl.run("delete", "namespace", f"{namespace}-ends", PATIENCE)
        assert world.operator.ready()
    finally:
        world.controlplane.start()
    for batch_id in batch_ids:
        assert eventually(partial(is_cancelled, world, batch_id)), world.operator
    assert eventually(lambda: status(kubectl, "waits").get("batchID")), world.operator
    # Other tests' namespaces may end meanwhile: their batches are orphans too.
    orphans = partial(world.operator.metric, "weir_operator_orphans_cancelled_total")
    assert eventually(lambda: orphans() >= 2), world.operator


def test_a_refusal_is_said_and_ends_when_its_cause_does(world: World, kubectl: Kubectl) -> None:
    named = {"configMapKeyRef": {"name": "lines", "key": "input.jsonl"}}
    kubectl.apply(llmservice(), lined(input=named))
    assert eventually(lambda: status(kubectl).get("conditions")), world.operator
    assert "batchID" not in status(kubectl)
    given = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "lines"}}
    kubectl.apply({**given, "data": {"input.jsonl": lines(3)}})
    kubectl.run("label", "batchjob", "nightly", "look=again")
    assert eventually(lambda: status(kubectl).get("batchID")), world.operator
