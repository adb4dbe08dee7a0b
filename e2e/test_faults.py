"""One thing at a time is killed while a batch runs: no line is lost or doubled, online goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from e2e.support import faults
from e2e.support.jobs import ALL_ONCE, account, answers, newest, until_complete, until_some_done
from e2e.support.manifests import SERVICE, batch_job, idle_service
from e2e.support.platform import OPERATOR_ACCOUNT, Platform
from e2e.support.traffic import Failure
from e2e.support.waiting import condition, until

LINES = 400
TOKENS = 64
LONG_LINES = 700
LONG_TOKENS = 256
"""Of a batch that is still running when the first of the old pods drains."""
RECOVERY_S, RECOVERY_STARTS, RECOVERY_MOST_S = 60, 3, 180
"""Bound on a node of ordinary pace; where engines start slowly so many of their starts, at most."""
PROXY_S = 5
"""Time in which the node's proxy follows an endpoint that was withdrawn."""
UNNOTICED_S = 5
"""Time in which conditions may still be those of before."""
TAKEOVER_S = 30
"""The lease's 10 s, two looks 2 s apart, requests of 2 s that a busy API server lets run out."""
OUTAGE_S = 30
CONDITIONS = ("Ready", "Available", "PolicyFresh")


Pod = Mapping[str, Any]
RecordProperty = Callable[[str, object], None]


def crash_an_agent(_: Platform, agent: Pod) -> None:
    faults.crash(agent)


def delete_an_agent(platform: Platform, agent: Pod) -> None:
    faults.delete(platform.shop, agent)


def crash_a_control_plane(platform: Platform, _: Pod) -> None:
    faults.crash(faults.pods(platform.system, "controlplane")[0])


def crash_redis(platform: Platform, _: Pod) -> None:
    faults.crash(faults.pods(platform.system, "redis")[0])


def crash_and_delete_postgresql(platform: Platform, _: Pod) -> None:
    (pod,) = faults.pods(platform.system, "postgresql")
    faults.crash(pod)  # first: two servers on one volume would be another fault
    faults.delete(platform.system, pod)


def stop_the_api_server(platform: Platform, _: Pod) -> None:
    faults.without_api_server(platform.api, seconds=OUTAGE_S)


def delete_the_leader(platform: Platform, _: Pod) -> None:
    """Takes the leader away; the other corrects a deletion that nobody was there to see."""
    leader = faults.leader(platform.system)
    before = platform.shop.get("service", "watched") or {}
    (pod,) = (
        pod for pod in faults.pods(platform.system, "operator") if pod["metadata"]["name"] == leader
    )
    killed_at = datetime.now(UTC)
    faults.crash(pod)
    faults.delete(platform.system, pod, force=True)
    since = platform.api.audit.position()
    platform.shop.run("delete", "service", "watched")
    until(
        lambda: (
            (platform.shop.get("service", "watched") or before)["metadata"]["uid"]
            != before["metadata"]["uid"]
        ),
        "the other operator makes the Service again",
    )
    successor = faults.leader(platform.system)
    assert successor not in ("", leader)
    assert writers(platform, since) == {successor}
    waited = faults.led_since(platform.system) - killed_at
    assert waited.total_seconds() <= TAKEOVER_S


FAULTS: dict[str, Callable[[Platform, Pod], None]] = {
    "agent-crash": crash_an_agent,
    "agent-deletion": delete_an_agent,
    "operator-leader": delete_the_leader,
    "control-plane": crash_a_control_plane,
    "redis": crash_redis,
    "postgresql": crash_and_delete_postgresql,
    "api-server": stop_the_api_server,
}


@pytest.fixture(scope="module")
def watched(service: Platform) -> Platform:
    """The platform with a second LLMService, whose children show that an operator works."""
    service.shop.apply(idle_service("watched"))
    until(
        lambda: service.shop.get("service", "watched") is not None,
        "its Service",
    )
    return service


def test_one_operator_acts(watched: Platform) -> None:
    """Two run, and every write of theirs is by the one that leads."""
    since = watched.api.audit.position()
    for kind in ("service", "networkpolicy", "poddisruptionbudget"):
        watched.shop.run("delete", kind, "watched")
        until(partial(exists, watched, kind, "watched"), f"another {kind}")
    assert len(faults.pods(watched.system, "operator")) == 2
    assert writers(watched, since) == {faults.leader(watched.system)}


def test_a_rollout_drains(watched: Platform, key: str) -> None:
    """Both pods are replaced while a batch runs: chunks go back, and no stream is cut."""
    watched.settled()
    before = {pod["metadata"]["uid"] for pod in watched.replicas()}
    turn = {"spec": {"podTemplate": {"metadata": {"annotations": {"example.com/turn": "2"}}}}}
    with watched.batches(key) as client:
        with watched.traffic().running() as traffic:
            latest = newest(client)
            watched.shop.apply(
                *batch_job("during-rollout", lines=LONG_LINES, max_tokens=LONG_TOKENS)
            )
            batch_id = until_some_done(client, after=latest)
            until(partial(serves_batches, watched), "the status has its rate")
            watched.shop.run(
                *("patch", "llmservice", SERVICE, "--type=merge", "--patch", json.dumps(turn))
            )
            until(
                lambda: (
                    before.isdisjoint(pod["metadata"]["uid"] for pod in watched.replicas())
                    and watched.is_settled()
                ),
                "every pod is another",
            )
            job = until_complete(watched.shop, "during-rollout")
        assert job["status"]["counts"] == {
            "total": LONG_LINES,
            "completed": LONG_LINES,
            "failed": 0,
        }
        assert account(client, batch_id, lines=LONG_LINES) == ALL_ONCE
    assert (traffic.failures, traffic.answers > 0) == ([], True)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_batch_outlives(
    watched: Platform, key: str, fault: str, record_property: RecordProperty
) -> None:
    name = f"during-{fault}"
    watched.settled()
    victim, survivor = watched.replicas()
    starts_s = max(faults.started_in_s(pod) for pod in (victim, survivor))
    with watched.batches(key) as client:
        with ExitStack() as stack:
            through_service = stack.enter_context(watched.traffic().running())
            straight = stack.enter_context(watched.traffic(survivor).running())
            before = newest(client)
            watched.shop.apply(*batch_job(name, lines=LINES, max_tokens=TOKENS))
            batch_id = until_some_done(client, after=before)
            begun_s = time.monotonic()
            FAULTS[fault](watched, victim)
            over_s = time.monotonic()
            if fault == "agent-crash":
                until_unreachable(watched, victim)
            gone_s = time.monotonic()
            time.sleep(UNNOTICED_S)
            until(lambda: is_well(watched), f"{CONDITIONS} are True again")
            well_s = time.monotonic() - over_s
            watched.settled()
            job = until_complete(watched.shop, name)
        assert answers(client)
        record_property(f"{fault}: seconds until conditions were True again", round(well_s))
        assert job["status"]["batchID"] == batch_id
        assert job["status"]["counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        assert account(client, batch_id, lines=LINES) == ALL_ONCE
    assert straight.failures == []
    assert straight.answers > 0
    harmed: list[Failure] = through_service.failures
    if fault == "agent-crash":  # requests on the pod that crashed, and they alone
        harmed = through_service.failures_outside(begun_s, gone_s)
    assert harmed == []
    assert well_s <= min(RECOVERY_MOST_S, max(RECOVERY_S, RECOVERY_STARTS * starts_s))


def until_unreachable(platform: Platform, pod: Pod) -> None:
    """Returns when the service's address no longer leads to a pod: until then requests may fail."""
    until(
        lambda: not platform.is_endpoint(pod),
        "the pod that crashed is no endpoint",
        every_s=0.2,
    )
    time.sleep(PROXY_S)


def serves_batches(platform: Platform) -> bool:
    """Whether the service's status says that batch work is served."""
    found = platform.shop.get("llmservice", SERVICE) or {}
    return float((found.get("status") or {}).get("offlineTokensPerSecond", 0)) > 0


def exists(platform: Platform, kind: str, name: str) -> bool:
    return platform.shop.get(kind, name) is not None


def writers(platform: Platform, since: int) -> set[str]:
    """The operators' pods that wrote since a position of the audit log, Leases aside."""
    return {
        call.user_agent.removeprefix("weir-operator/")
        for call in platform.api.audit.writes(since=since)
        if call.user == OPERATOR_ACCOUNT and call.resource != "leases"
    }


def is_well(platform: Platform) -> bool:
    """Whether the service's conditions are True."""
    found: dict[str, Any] | None = platform.shop.get("llmservice", SERVICE)
    return all(condition(found, kind).get("status") == "True" for kind in CONDITIONS)
