"""Writes to a real API server: where something of ours differs, never over what is not ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.kubectl import Kubectl
from weir_operator.cluster.api import ClusterApi
from weir_operator.cluster.connection import client, configuration
from weir_operator.cluster.errors import NamespaceTerminatingError, RefusedError
from weir_operator.cluster.store import ObjectStore
from weir_operator.cluster.writer import ForeignObjectError, Writer
from weir_operator.leader.elector import NotLeaderError
from weir_operator.metrics import OperatorMetrics
from weir_operator.planning.kinds import BATCH_JOB, FINALIZER, SERVICE, SERVICE_LABEL
from weir_operator.planning.types import ChildRef, EventNote

pytestmark = pytest.mark.kubernetes
USER_AGENT = "weir-operator/writer-test"


class Bench:
    """A writer, and what it stands on."""

    def __init__(self, api: ClusterApi, metrics: OperatorMetrics) -> None:
        self.api = api
        self.store = ObjectStore(lambda _: None)
        self.writer = Writer(api, self.store, metrics=metrics, instance="weir-operator-0")
        self.metrics = metrics
        self.leads = True

    async def look(self, namespace: str, name: str = "chat") -> None:
        """What a watch would have told by now."""
        self.store.seen(SERVICE, await self.api.get(SERVICE, namespace, name))


@pytest.fixture
async def bench(api_server: ApiServer) -> AsyncIterator[Bench]:
    loaded = await configuration(api_server.kubeconfig)
    made = client(loaded, user_agent=USER_AGENT)
    metrics = OperatorMetrics()

    def check() -> None:
        if not found.leads:
            raise NotLeaderError("standby")

    api = ClusterApi(made, check=check, metrics=metrics, read_timeout_s=10, write_timeout_s=10)
    found = Bench(api, metrics)
    yield found
    await made.close()  # type: ignore[no-untyped-call]


def owner(namespace: str, name: str = "chat") -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "uid": "00000000-0000-0000-0000-000000000001"}
    return {"apiVersion": "weir.dev/v1alpha1", "kind": "LLMService", "metadata": metadata}


def service(namespace: str, *, port: int = 8000, **spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "namespace": namespace,
            "name": "chat",
            "labels": {SERVICE_LABEL: "chat", "app": "chat"},
        },
        "spec": {
            "ports": [{"name": "http", "port": port}],
            "selector": {"app": "chat"},
            **spec,
        },
    }


def job(name: str = "nightly") -> dict[str, Any]:
    return {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "BatchJob",
        "metadata": {"name": name},
        "spec": {"serviceRef": {"name": "chat"}, "input": {"uri": "s3://bucket/in.jsonl"}},
    }


async def test_an_equal_child_is_not_written_again(
    bench: Bench, api_server: ApiServer, namespace: str
) -> None:
    assert await bench.writer.apply_child(owner(namespace), service(namespace))
    before = api_server.audit.position()
    for _ in range(3):
        await bench.look(namespace)
        assert not await bench.writer.apply_child(owner(namespace), service(namespace))
    written = api_server.audit.writes(since=before, namespace=namespace)
    assert [call for call in written if call.user_agent == USER_AGENT] == []


async def test_drift_in_our_fields_is_corrected_and_what_users_add_stays(
    bench: Bench, kubectl: Kubectl, namespace: str
) -> None:
    await bench.writer.apply_child(owner(namespace), service(namespace))
    patch = '{"metadata":{"labels":{"team":"search"}},"spec":{"sessionAffinity":"ClientIP"}}'
    kubectl.run("patch", "service", "chat", "--type=merge", "-p", patch)
    await bench.look(namespace)
    assert not await bench.writer.apply_child(owner(namespace), service(namespace))

    kubectl.run("patch", "service", "chat", "-p", '{"spec":{"selector":{"app":"other"}}}')
    await bench.look(namespace)
    assert await bench.writer.apply_child(owner(namespace), service(namespace))
    found = kubectl.get("service", "chat")
    assert found is not None
    assert found["spec"]["selector"] == {"app": "chat"}
    assert found["metadata"]["labels"]["team"] == "search"
    assert found["spec"]["sessionAffinity"] == "ClientIP"


async def test_a_field_that_users_remove_comes_back_and_one_we_drop_goes(
    bench: Bench, kubectl: Kubectl, namespace: str
) -> None:
    wanted = service(namespace, publishNotReadyAddresses=True)
    await bench.writer.apply_child(owner(namespace), wanted)
    kubectl.run("label", "service", "chat", "app-")
    await bench.look(namespace)
    assert await bench.writer.apply_child(owner(namespace), wanted)
    assert await bench.writer.apply_child(owner(namespace), service(namespace, port=9000))
    found = kubectl.get("service", "chat")
    assert found is not None
    assert found["metadata"]["labels"]["app"] == "chat"
    assert "publishNotReadyAddresses" not in found["spec"]
    assert [port["port"] for port in found["spec"]["ports"]] == [9000]


async def test_a_deleted_child_is_made_again(
    bench: Bench, kubectl: Kubectl, namespace: str
) -> None:
    await bench.writer.apply_child(owner(namespace), service(namespace))
    gone = kubectl.get("service", "chat")
    assert gone is not None
    kubectl.run("delete", "service", "chat")
    bench.store.gone(SERVICE, gone)
    assert await bench.writer.apply_child(owner(namespace), service(namespace))
    assert kubectl.get("service", "chat") is not None


async def test_an_object_of_somebody_else_is_left_alone(
    bench: Bench, kubectl: Kubectl, namespace: str
) -> None:
    theirs = service(namespace, port=5432)
    del theirs["metadata"]["labels"][SERVICE_LABEL]
    kubectl.apply(theirs)
    with pytest.raises(ForeignObjectError, match="rename the LLMService"):
        await bench.writer.apply_child(owner(namespace), service(namespace))
    found = kubectl.get("service", "chat")
    assert found is not None
    assert found["spec"]["ports"][0]["port"] == 5432


async def test_a_wrong_child_is_refused_for_good(bench: Bench, namespace: str) -> None:
    with pytest.raises(RefusedError, match="port") as raised:
        await bench.writer.apply_child(owner(namespace), service(namespace, port=99999))
    assert raised.value.permanent
    assert raised.value.reason == "Invalid"


async def test_a_field_that_the_childs_kind_has_not_is_refused_for_good(
    bench: Bench, namespace: str
) -> None:
    """To an apply the API server answers 500 then: a mistyped podTemplate was long not told of."""
    child = service(namespace)
    child["spec"]["selektor"] = {"app": "chat"}
    with pytest.raises(RefusedError, match="selektor: field not declared in schema") as raised:
        await bench.writer.apply_child(owner(namespace), child)
    assert raised.value.permanent


async def test_what_is_no_quantity_is_refused_for_good(bench: Bench, namespace: str) -> None:
    """To this too an apply is answered 500."""
    limits = {"memory": "1e3Gi"}
    child = {
        **service(namespace),
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {
            "selector": {"matchLabels": {"app": "chat"}},
            "template": {
                "metadata": {"labels": {"app": "chat"}},
                "spec": {"containers": [{"name": "agent", "resources": {"limits": limits}}]},
            },
        },
    }
    with pytest.raises(RefusedError, match="quantities must match") as raised:
        await bench.writer.apply_child(owner(namespace), child)
    assert raised.value.permanent


async def test_who_does_not_lead_writes_nothing(
    bench: Bench, kubectl: Kubectl, namespace: str
) -> None:
    bench.leads = False
    with pytest.raises(NotLeaderError):
        await bench.writer.apply_child(owner(namespace), service(namespace))
    assert kubectl.get("service", "chat") is None


async def test_a_removal_spares_a_namesake(bench: Bench, kubectl: Kubectl, namespace: str) -> None:
    await bench.writer.apply_child(owner(namespace), service(namespace))
    found = kubectl.get("service", "chat")
    assert found is not None
    ref = {"api_version": "v1", "kind": "Service", "namespace": namespace, "name": "chat"}
    await bench.writer.remove(ChildRef(**ref, uid="00000000-0000-0000-0000-00000000000f"))
    assert kubectl.get("service", "chat") is not None
    for _ in range(2):
        await bench.writer.remove(ChildRef(**ref, uid=found["metadata"]["uid"]))
    assert kubectl.get("service", "chat") is None


async def test_status_and_finalizer_touch_nothing_else_and_make_nothing(
    bench: Bench, kubectl: Kubectl
) -> None:
    kubectl.apply(job())
    live = kubectl.get("batchjob", "nightly")
    assert live is not None
    assert await bench.writer.set_finalizer(live, wanted=True)
    assert not await bench.writer.write_status(live, {"observedGeneration": 1})  # it has changed
    live = kubectl.get("batchjob", "nightly")
    assert live is not None
    assert await bench.writer.write_status(live, {"observedGeneration": 1})
    found = kubectl.get("batchjob", "nightly")
    assert found is not None
    assert found["metadata"]["finalizers"] == [FINALIZER]
    assert found["spec"] == live["spec"]
    assert found["metadata"]["generation"] == live["metadata"]["generation"]
    assert await bench.writer.set_finalizer(live, wanted=False)
    assert "finalizers" not in (kubectl.get("batchjob", "nightly") or {})["metadata"]
    kubectl.run("delete", "batchjob", "nightly")
    where = (BATCH_JOB, live["metadata"]["namespace"], "nightly")
    assert bench.store.get(*where) is not None  # no watch told of it
    assert not await bench.writer.write_status(live, {"observedGeneration": 1})
    assert bench.store.get(*where) is None
    assert not await bench.writer.set_finalizer(live, wanted=True)
    assert kubectl.get("batchjob", "nightly") is None
    kubectl.apply(job())
    assert not await bench.writer.write_status(live, {"observedGeneration": 7})
    again = kubectl.get("batchjob", "nightly")
    assert again is not None
    assert "observedGeneration" not in again.get("status", {})


async def test_a_finalizer_that_came_with_a_copied_manifest_is_released_too(
    bench: Bench, kubectl: Kubectl
) -> None:
    """Whoever applied the copy owns it; finalizers of others stay."""
    copies = {"copy": [FINALIZER], "held": ["example.com/theirs", FINALIZER]}
    for name, finalizers in copies.items():
        manifest = job(name)
        manifest["metadata"]["finalizers"] = finalizers
        kubectl.apply(manifest)
        live = kubectl.get("batchjob", name)
        assert live is not None
        assert await bench.writer.set_finalizer(live, wanted=True)
        kubectl.run("delete", "batchjob", name, "--wait=false")
        assert await bench.writer.set_finalizer(live, wanted=False)
    assert kubectl.get("batchjob", "copy") is None
    held = kubectl.get("batchjob", "held")
    assert held is not None
    assert held["metadata"]["finalizers"] == ["example.com/theirs"]
    kubectl.run("patch", "batchjob", "held", "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')


async def test_events_are_said_and_a_terminating_namespace_takes_none(
    bench: Bench, kubectl: Kubectl, namespace: str
) -> None:
    kubectl.apply(job())
    live = kubectl.get("batchjob", "nightly")
    assert live is not None
    note = EventNote(type="Normal", reason="BatchCreated", message="batch_1 was made")
    await bench.writer.send_event(live, note)
    said = kubectl.run("describe", "batchjob", "nightly").stdout
    assert "BatchCreated" in said
    assert "batch_1 was made" in said
    hold, free = (f'{{"metadata":{{"finalizers":{value}}}}}' for value in ('["a.io/hold"]', "[]"))
    patch = ("patch", "batchjob", "nightly", "--type=merge", "-p")
    kubectl.run(*patch, hold)
    kubectl.run("delete", "namespace", namespace, "--wait=false")
    try:
        await bench.writer.send_event(live, note)
        with pytest.raises(NamespaceTerminatingError):
            await bench.writer.apply_child(owner(namespace), service(namespace))
    finally:
        kubectl.run(*patch, free)
    assert outcomes(bench) == {"sent": 1, "namespace_terminating": 1}


async def test_events_are_taken_however_long_what_they_say_is(
    bench: Bench, kubectl: Kubectl
) -> None:
    """The API server counts bytes, not characters."""
    kubectl.apply(job())
    live = kubectl.get("batchjob", "nightly")
    assert live is not None
    for number, text in enumerate(("x" * 1024, "x" * 1025, "x" * 1023 + "…", "中文" * 600)):
        note = EventNote(type="Warning", reason=f"Long{number}", message=text)
        await bench.writer.send_event(live, note)
    assert outcomes(bench) == {"sent": 4}
    said = {item["reason"]: str(item["message"]) for item in kubectl.list("events")}
    assert said["Long0"] == "x" * 1024
    assert said["Long1"] == said["Long2"] == "x" * 1021 + "…"
    assert said["Long3"] == "中文" * 170 + "…"


def outcomes(bench: Bench) -> dict[str, float]:
    """How many Events had which outcome."""
    return {
        sample.labels["outcome"]: sample.value
        for family in bench.metrics.events.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }


async def test_lists_are_complete_and_by_label(
    bench: Bench, kubectl: Kubectl, namespace: str
) -> None:
    kubectl.apply(*[job(f"job-{number}") for number in range(7)])
    read = partial(bench.api.list, BATCH_JOB, namespace=namespace, keep=dict)
    found = await read()
    assert len(found.items) == 7
    assert found.items[0]["kind"] == "BatchJob"
    assert int(found.resource_version) > 0
    assert (await read(label="none")).items == []
