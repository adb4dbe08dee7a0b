"""What the store keeps, whom a change concerns, and which of our fields drifted."""

from __future__ import annotations

from typing import Any

import pytest

from weir_operator.api.batchjob import BatchJobSpec
from weir_operator.cluster.ownership import applied, must_apply, owned_fields, owned_values
from weir_operator.cluster.store import POD, ObjectStore
from weir_operator.planning.kinds import (
    BATCH_JOB,
    DEPLOYMENT,
    FIELD_MANAGER,
    LLM_SERVICE,
    SERVICE_LABEL,
    Kind,
)
from weir_operator.planning.types import ObjectKey


def item(
    kind: Kind,
    name: str,
    version: int,
    *,
    uid: str = "u1",
    service: str | None = None,
    **fields: object,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "namespace": "team",
        "name": name,
        "uid": uid,
        "resourceVersion": str(version),
    }
    if service:
        metadata["labels"] = {SERVICE_LABEL: service}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **fields}


def key(kind: Kind, name: str) -> ObjectKey:
    return ObjectKey(kind=kind.kind, namespace="team", name=name)


class Seen:
    """A store and the keys that it enqueued since the last look."""

    def __init__(self) -> None:
        self.keys: list[ObjectKey] = []
        self.store = ObjectStore(self.keys.append)

    def take(self) -> list[ObjectKey]:
        found = list(self.keys)
        self.keys.clear()
        return found


def test_a_child_concerns_its_service_and_a_service_its_jobs() -> None:
    seen = Seen()
    seen.store.seen(LLM_SERVICE, item(LLM_SERVICE, "chat", 1, spec={}))
    assert seen.take() == [key(LLM_SERVICE, "chat")]
    job = item(BATCH_JOB, "nightly", 2, uid="u2", spec={"serviceRef": {"name": "chat"}})
    seen.store.seen(BATCH_JOB, job)
    assert seen.take() == [key(BATCH_JOB, "nightly")]
    seen.store.seen(POD, item(POD, "chat-1", 3, uid="u3", service="chat"))
    assert seen.take() == [key(LLM_SERVICE, "chat")]
    seen.store.seen(LLM_SERVICE, item(LLM_SERVICE, "chat", 4, spec={"replicas": 2}))
    assert seen.take() == [key(LLM_SERVICE, "chat"), key(BATCH_JOB, "nightly")]


def test_a_child_that_gets_another_services_label_concerns_both() -> None:
    seen = Seen()
    seen.store.seen(DEPLOYMENT, item(DEPLOYMENT, "chat", 1, service="chat"))
    seen.take()
    seen.store.seen(DEPLOYMENT, item(DEPLOYMENT, "chat", 2, service="other"))
    assert set(seen.take()) == {key(LLM_SERVICE, "chat"), key(LLM_SERVICE, "other")}


def test_our_own_status_and_a_repeated_event_enqueue_nothing() -> None:
    seen = Seen()
    seen.store.seen(LLM_SERVICE, item(LLM_SERVICE, "chat", 1, spec={"replicas": 1}))
    seen.take()
    echo = item(LLM_SERVICE, "chat", 2, spec={"replicas": 1}, status={"replicas": 1})
    echo["metadata"]["managedFields"] = [{"manager": FIELD_MANAGER, "subresource": "status"}]
    seen.store.seen(LLM_SERVICE, echo)
    seen.store.seen(LLM_SERVICE, echo)
    assert seen.take() == []
    live = seen.store.get(LLM_SERVICE, "team", "chat")
    assert live is not None
    assert live["status"] == {"replicas": 1}


@pytest.mark.parametrize("writers", [[], ["kubectl-edit"], ["kubectl-edit", FIELD_MANAGER]])
def test_a_status_that_somebody_else_wrote_does_count(writers: list[str]) -> None:
    seen = Seen()
    seen.store.seen(LLM_SERVICE, item(LLM_SERVICE, "chat", 1, status={"replicas": 1}))
    job = item(BATCH_JOB, "nightly", 2, uid="u2", spec={"serviceRef": {"name": "chat"}})
    seen.store.seen(BATCH_JOB, job)
    seen.take()
    wiped = item(LLM_SERVICE, "chat", 3)
    wiped["metadata"]["managedFields"] = [
        {"manager": writer, "subresource": "status"} for writer in writers
    ]
    seen.store.seen(LLM_SERVICE, wiped)
    assert seen.take() == [key(LLM_SERVICE, "chat")]  # and no job of it


def test_a_childs_status_does_count() -> None:
    seen = Seen()
    child = item(DEPLOYMENT, "chat", 1, service="chat", status={"readyReplicas": 0})
    seen.store.seen(DEPLOYMENT, child)
    seen.take()
    ready = item(DEPLOYMENT, "chat", 2, service="chat", status={"readyReplicas": 1})
    seen.store.seen(DEPLOYMENT, ready)
    assert seen.take() == [key(LLM_SERVICE, "chat")]


def test_older_versions_and_late_words_about_a_predecessor_change_nothing() -> None:
    seen = Seen()
    seen.store.seen(LLM_SERVICE, item(LLM_SERVICE, "chat", 5, uid="new", spec={"replicas": 2}))
    seen.store.seen(LLM_SERVICE, item(LLM_SERVICE, "chat", 3, uid="old", spec={"replicas": 1}))
    seen.store.gone(LLM_SERVICE, item(LLM_SERVICE, "chat", 4, uid="old"))
    live = seen.store.get(LLM_SERVICE, "team", "chat")
    assert live is not None
    assert live["metadata"]["uid"] == "new"


def test_an_answer_that_is_read_after_the_deletion_brings_nothing_back() -> None:
    """The children of such a service were made and collected again, twice a second."""
    seen = Seen()
    seen.store.seen(LLM_SERVICE, item(LLM_SERVICE, "chat", 5))
    seen.store.gone(LLM_SERVICE, item(LLM_SERVICE, "chat", 7))
    seen.store.seen(LLM_SERVICE, item(LLM_SERVICE, "chat", 6, status={}), own_write=True)
    assert seen.store.get(LLM_SERVICE, "team", "chat") is None
    seen.store.gone(POD, item(POD, "chat-1", 8, uid="pod", service="chat"))  # its label went
    seen.store.seen(POD, item(POD, "chat-1", 9, uid="pod", service="chat"))
    assert seen.store.get(POD, "team", "chat-1") is not None


def test_a_full_list_finds_deletions_that_the_watch_never_told() -> None:
    seen = Seen()
    for number in range(3):
        seen.store.seen(LLM_SERVICE, item(LLM_SERVICE, f"s{number}", number + 1, uid=str(number)))
    seen.store.seen(LLM_SERVICE, item(LLM_SERVICE, "fresh", 20, uid="fresh"))
    seen.take()
    lost = seen.store.replace(LLM_SERVICE, [item(LLM_SERVICE, "s1", 2, uid="1")], "10", newest=3)
    assert sorted(str(one["metadata"]["name"]) for one in lost) == ["s0", "s2"]
    assert set(seen.take()) == {key(LLM_SERVICE, "s0"), key(LLM_SERVICE, "s2")}
    names = {str(one["metadata"]["name"]) for one in seen.store.all(LLM_SERVICE)}
    assert names == {"s1", "fresh"}


def test_a_list_brings_back_nothing_that_was_deleted_meanwhile() -> None:
    seen = Seen()
    seen.store.gone(BATCH_JOB, item(BATCH_JOB, "job", 12))
    seen.store.replace(BATCH_JOB, [item(BATCH_JOB, "job", 4)], "10", newest=0)
    assert seen.store.get(BATCH_JOB, "team", "job") is None
    late = item(BATCH_JOB, "job", 4)
    seen.store.seen(BATCH_JOB, late)
    assert seen.store.get(BATCH_JOB, "team", "job") is None


def test_a_list_of_a_store_that_was_restored_is_taken_over_though_versions_went_back() -> None:
    """As after a restore of etcd: the API server counts on from the snapshot's version."""
    seen = Seen()
    services = [
        item(LLM_SERVICE, name, 9000, uid=name, spec={"replicas": 1}) for name in ("a", "b", "c")
    ]
    seen.store.replace(LLM_SERVICE, services, "9100", newest=0)
    seen.store.gone(LLM_SERVICE, item(LLM_SERVICE, "c", 9200, uid="c"))
    seen.take()
    restored = [
        item(LLM_SERVICE, "a", 4000, uid="a", spec={"replicas": 7}),
        item(LLM_SERVICE, "c", 4000, uid="c", spec={"replicas": 1}),
    ]
    lost = seen.store.replace(LLM_SERVICE, restored, "5000", newest=9100)
    assert [one["metadata"]["name"] for one in lost] == ["b"]
    assert set(seen.take()) == {key(LLM_SERVICE, name) for name in "abc"}
    seen.store.seen(LLM_SERVICE, item(LLM_SERVICE, "a", 5001, uid="a", spec={"replicas": 2}))
    assert seen.take() == [key(LLM_SERVICE, "a")]
    live = seen.store.get(LLM_SERVICE, "team", "a")
    assert live is not None
    assert live["spec"] == {"replicas": 2}


def test_a_restored_store_whose_versions_were_raised_is_taken_over() -> None:
    """As ``etcdutl snapshot restore --bump-revision``: lists are new, their objects are old.

    A standby that lived through it sent the versions of before with each status, and was refused.
    """
    seen = Seen()
    seen.store.replace(
        LLM_SERVICE, [item(LLM_SERVICE, "a", 800, uid="a", spec={"replicas": 1})], "880", newest=0
    )
    seen.store.seen(LLM_SERVICE, item(LLM_SERVICE, "a", 950, uid="a", spec={"replicas": 7}))
    seen.store.gone(LLM_SERVICE, item(LLM_SERVICE, "b", 960, uid="b"))
    seen.take()
    restored = [
        item(LLM_SERVICE, "a", 870, uid="a", spec={"replicas": 1}),
        item(LLM_SERVICE, "b", 860, uid="b", spec={"replicas": 1}),
    ]
    assert seen.store.replace(LLM_SERVICE, restored, "1000000900", newest=950) == []
    assert set(seen.take()) == {key(LLM_SERVICE, "a"), key(LLM_SERVICE, "b")}
    live = seen.store.get(LLM_SERVICE, "team", "a")
    assert live is not None
    assert (live["spec"], live["metadata"]["resourceVersion"]) == ({"replicas": 1}, "870")


def test_a_list_older_than_what_was_seen_before_it_was_asked_for_is_of_a_restored_store() -> None:
    """The snapshot may be younger than the last full list."""
    seen = Seen()
    seen.store.replace(LLM_SERVICE, [item(LLM_SERVICE, "a", 800, uid="a")], "880", newest=0)
    seen.store.seen(LLM_SERVICE, item(LLM_SERVICE, "a", 950, uid="a", spec={"replicas": 7}))
    seen.store.seen(LLM_SERVICE, item(LLM_SERVICE, "made-since", 960, uid="b"))
    seen.take()
    newest = seen.store.newest(LLM_SERVICE)
    assert newest == 960
    restored = [item(LLM_SERVICE, "a", 800, uid="a")]
    lost = seen.store.replace(LLM_SERVICE, restored, "905", newest=newest)
    assert [one["metadata"]["name"] for one in lost] == ["made-since"]
    assert set(seen.take()) == {key(LLM_SERVICE, "a"), key(LLM_SERVICE, "made-since")}
    live = seen.store.get(LLM_SERVICE, "team", "a")
    assert live is not None
    assert live["metadata"]["resourceVersion"] == "800"


LINES = '{"custom_id": "1"}\n'
JOB_SPEC = {"serviceRef": {"name": "chat"}, "input": {"inline": LINES}}
FAILED = {"type": "Failed", "status": "True"}


@pytest.mark.parametrize(
    "status", [{"batchID": "batch_1"}, {"conditions": [FAILED]}], ids=["accepted", "refused"]
)
def test_the_lines_of_a_job_are_kept_only_while_they_may_be_sent(status: dict[str, Any]) -> None:
    seen = Seen()
    waiting = {"conditions": [{**FAILED, "status": "False"}]}
    seen.store.seen(BATCH_JOB, item(BATCH_JOB, "job", 1, spec=JOB_SPEC, status=waiting))
    live = seen.store.get(BATCH_JOB, "team", "job")
    assert live is not None
    assert live["spec"] == JOB_SPEC
    done = item(BATCH_JOB, "job", 2, spec=JOB_SPEC, status=status)
    seen.store.seen(BATCH_JOB, done, own_write=True)
    kept = seen.store.get(BATCH_JOB, "team", "job")
    assert kept is not None
    assert kept["spec"]["input"]["inline"] != LINES
    BatchJobSpec.model_validate(kept["spec"])  # it is planned as any other
    seen.take()
    assert seen.store.shared(BATCH_JOB, done) is kept  # nor does a full list hold it twice
    seen.store.seen(BATCH_JOB, item(BATCH_JOB, "job", 3, spec=JOB_SPEC, status=status))
    assert seen.take() == []
    changed = {**JOB_SPEC, "ttlSecondsAfterFinished": 5}
    seen.store.seen(BATCH_JOB, item(BATCH_JOB, "job", 4, spec=changed, status=status))
    assert seen.take() == [key(BATCH_JOB, "job")]


def test_children_are_found_by_their_label_until_it_goes() -> None:
    seen = Seen()
    seen.store.seen(POD, item(POD, "b", 1, uid="b", service="chat"))
    seen.store.seen(POD, item(POD, "a", 2, uid="a", service="chat"))
    pods = seen.store.of_service(POD, "team", "chat")
    assert [str(pod["metadata"]["name"]) for pod in pods] == ["a", "b"]
    seen.store.seen(POD, item(POD, "a", 3, uid="a"))
    seen.store.gone(POD, item(POD, "b", 4, uid="b"))
    assert seen.store.of_service(POD, "team", "chat") == []


FIELDS = {
    "f:metadata": {"f:labels": {"f:app": {}}},
    "f:spec": {
        "f:replicas": {},
        "f:containers": {
            'k:{"name":"engine"}': {".": {}, "f:name": {}, "f:image": {}},
        },
        "f:args": {},
        "f:finalizers": {'v:"weir.dev/batch"': {}},
    },
}


def live(**changed: object) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "replicas": 1,
        "containers": [
            {"name": "sidecar", "image": "users/own"},
            {"name": "engine", "image": "vllm", "imagePullPolicy": "Always"},
        ],
        "args": ["--a", "--b"],
        "finalizers": ["other", "weir.dev/batch"],
        **changed,
    }
    entry = {"manager": "weir-operator", "operation": "Apply", "fieldsV1": FIELDS}
    other = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:paused": {}}}}
    metadata = {"uid": "u", "labels": {"app": "weir"}, "managedFields": [other, entry]}
    return {"metadata": metadata, "spec": spec}


def test_only_our_fields_count_as_drift() -> None:
    desired = {"spec": {"replicas": 1}}
    record = applied(desired, live())
    fields = owned_fields(live())
    assert fields == FIELDS
    same = live(paused=True)
    same["spec"]["containers"][0]["image"] = "users/newer"
    same["spec"]["containers"].reverse()
    assert not must_apply(record, desired, same, fields)
    for changed in (
        live(replicas=3),
        live(args=["--a"]),
        live(finalizers=["other"]),
        live(containers=[{"name": "engine", "image": "other"}]),
        live(containers=[]),
    ):
        assert must_apply(record, desired, changed, fields)
    assert must_apply(record, {"spec": {"replicas": 2}}, live(), fields)
    assert must_apply(record, desired, None, fields)
    assert must_apply(None, desired, live(), fields)


def test_another_object_of_the_same_name_is_applied_again() -> None:
    record = applied({}, live())
    namesake = live()
    namesake["metadata"]["uid"] = "another"
    assert must_apply(record, {}, namesake, FIELDS)


def test_an_empty_field_set_names_the_whole_value() -> None:
    assert owned_values({"a": {"b": 1}}, {"f:a": {}}) == {"f:a": {"b": 1}}
