"""The operator's benchmark counts what the audit log says."""

from __future__ import annotations

import datetime as dt
from typing import Any

from benchmarks.operator.cost import calls_an_hour, count
from benchmarks.operator.workload import Size, objects
from e2e.cluster.audit import Call

OURS = "weir-operator/operator-0"
CALL: dict[str, Any] = {
    "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "user": "admin",
    "impersonated": None,
    "group": "",
    "subresource": "",
    "namespace": "bench-0",
    "name": "x",
    "status": 200,
}


def call(verb: str, resource: str, *, user_agent: str = OURS, **more: object) -> Call:
    return Call(**(CALL | {"verb": verb, "resource": resource, "user_agent": user_agent} | more))


def test_calls_are_counted_by_whom_they_are_for() -> None:
    found = count(
        [
            call("patch", "batchjobs", subresource="status"),
            call("patch", "deployments"),
            call("get", "services"),
            call("create", "events"),
            call("update", "leases"),
            call("list", "batchjobs"),
            call("patch", "batchjobs", status=409),
            call("patch", "batchjobs", user_agent="kubectl/v1.36"),
        ],
        user_agent=OURS,
    )
    assert (found.jobs, found.services, found.events, found.lease) == (2, 2, 1, 1)
    assert found.objects == 5
    assert found.writes == 3  # one was refused, the Lease does not count
    assert found.by_resource["patch batchjobs/status"] == 1


def test_an_hour_has_what_a_minute_shows_and_what_comes_less_often() -> None:
    minute = count([call("update", "leases")] * 30, user_agent=OURS)
    # Pages: one of 3 pods and three of 1,001 jobs; four probes a resync; two watches.
    an_hour = calls_an_hour(minute, 60.0, kinds={"Pod": 3, "BatchJob": 1001})
    assert an_hour == 30 * 60 + 6 * (4 + 4) + 12 * (4 + 2)


def test_every_object_of_the_workload_has_a_place_of_its_own() -> None:
    size = Size(jobs=30, services=4)
    made = list(objects(size))
    places = {
        (item["kind"], item["metadata"]["namespace"], item["metadata"]["name"]) for item in made
    }
    assert len(places) == size.objects
    services = {place[1:] for place in places if place[0] == "LLMService"}
    for item in made:
        if item["kind"] == "BatchJob":
            named = item["spec"]["serviceRef"]["name"]
            assert (item["metadata"]["namespace"], named) in services
