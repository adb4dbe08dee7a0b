"""Services as the operator registers them: pods that are gone, and what the others say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.agent_sim import SimAgent, telemetry
from tests.controlplane.jobs import ENDPOINT, Lab, input_lines, lab
from tests.controlplane.support import eventually, make_settings, running

Json = dict[str, Any]
PATH = "/internal/v1/services/team-a/llama"
PODS = [{"uid": f"uid-{number}", "name": f"llama-{number}"} for number in range(3)]
SLO = {"metric": "tbt", "statistic": "p99", "threshold_s": 0.1, "measured_s": 0.08}


@pytest.fixture
async def team(tmp_path: Path, database_url: str) -> AsyncIterator[Lab]:
    """A tenant whose namespace is team-a."""
    settings = make_settings(tmp_path, database_url, chunk_lines=4)
    async with running(settings) as plane, lab(plane) as it:
        bound = await plane.admin.put("/admin/v1/namespaces/team-a", json={"batchjobs": "acme"})
        assert bound.status_code == 200, bound.text
        yield it


async def put(team: Lab, pods: list[Json]) -> Json:
    body = {"model": "tiny", "service_account": "llama", "pods": pods}
    response = await team.plane.admin.put(PATH, json=body)
    assert response.status_code == 200, response.text
    view: Json = response.json()
    return view


def pod(team: Lab, number: int) -> SimAgent:
    return team.agent(f"team-a.llama-{number}", service="team-a/llama")


async def test_a_pod_that_is_gone_loses_its_leases_at_once(team: Lab) -> None:
    """§8.1."""
    await put(team, PODS)
    first = pod(team, 0)
    await first.ready()
    batch_id = await team.submit(8)
    await team.syncs_until(first, lambda: len(first.held) == 2)
    second = pod(team, 1)
    await second.ready()
    assert second.held == {}
    assert (await put(team, PODS))["pods"][0]["held_chunks"] == 2

    view = await put(team, PODS[1:])
    assert [item["uid"] for item in view["pods"]] == ["uid-1", "uid-2"]
    await team.syncs_until(second, lambda: len(second.held) == 2)
    late = next(iter(first.held.values()))
    query = {"attempt": late["attempt"], "nonce": late["nonce"]}
    stale = await team.http.get(f"/internal/v1/chunks/{late['chunk_id']}/lines", params=query)
    assert stale.json()["error"]["code"] == "stale_lease"
    for lease in list(second.held.values()):
        await second.finish(lease)
    batch = await team.until(batch_id, "completed")
    await team.assert_whole(batch, 8)


async def test_the_status_is_what_the_agents_said(team: Lab) -> None:
    await put(team, PODS[:2])
    agents = [pod(team, number) for number in range(2)]
    for agent, attained in zip(agents, (True, False), strict=True):
        told = telemetry(
            offline_served_tokens=250,
            window_s=0.5,
            offline_kv_blocks=50,
            slo=[{**SLO, "attained": attained}],
        )
        await agent.sync(telemetry=told)
    view: Json = {}

    async def shown() -> bool:
        nonlocal view
        view = await put(team, PODS[:2])
        return all(item["total_blocks"] for item in view["pods"])

    await eventually(shown)
    first = view["pods"][0]
    assert first["agent_id"] == "team-a.llama-0"
    assert (first["total_blocks"], first["online_kv_blocks"], first["offline_kv_blocks"]) == (
        1000,
        100,
        50,
    )
    assert 0 < first["offline_kv_threshold_blocks"] <= 900
    assert first["policy_expires_at"] > first["last_sync_at"]
    assert first["offline_tokens_per_s"] == 500
    assert [item["slo_met"] for item in view["pods"]] == [True, False]
    assert (view["slo_attainment"], view["offline_tokens_per_s"]) == (0.5, 1000)
    assert view["policy_fresh"] is True
    assert view["waiting_batches"] == 0
    listed = (await team.plane.admin.get("/internal/v1/services")).json()["data"]
    assert [(item["namespace"], item["name"]) for item in listed] == [("team-a", "llama")]
    assert {item["uid"] for item in listed[0]["pods"]} == {"uid-0", "uid-1"}


async def test_a_pod_that_says_nothing_has_an_empty_status(team: Lab) -> None:
    view = await put(team, PODS[:1])
    assert view["pods"][0]["state"] is None
    assert view["pods"][0]["offline_kv_threshold_blocks"] is None
    assert (view["slo_attainment"], view["policy_fresh"]) == (None, None)


async def test_a_service_can_be_removed_twice(team: Lab) -> None:
    await put(team, PODS)
    for _ in range(2):
        assert (await team.plane.admin.delete(PATH)).status_code == 204
    assert (await team.plane.admin.get("/internal/v1/services")).json()["data"] == []
    assert len((await put(team, PODS))["pods"]) == 3


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"service_account": None}, "service_account"),
        ({"model": "m\0"}, "model"),
        ({"pods": [{"uid": "", "name": "a"}]}, "pods.0.uid"),
        ({"pods": [{"uid": "u", "name": "A_B"}]}, "pods.0.name"),
    ],
)
async def test_bad_input_names_the_field(team: Lab, given: Json, param: str) -> None:
    body = {"service_account": "llama", "pods": PODS, **given}
    response = await team.plane.admin.put(PATH, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_models_resolve_only_in_namespaces_bound_to_the_tenant(team: Lab) -> None:
    """§8 Security."""
    own, foreign = pod(team, 0), team.agent("team-b.x", service="team-b/x", model="secret")
    await own.ready()
    await foreign.ready()
    refused = await submit(team, "secret")
    batch = await team.openai.batches.retrieve(refused)
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert batch.errors.data[0].code == "model_mismatch"

    admin = team.plane.admin
    await admin.put("/admin/v1/namespaces/team-b", json={"models": ["acme"]})
    batch_id = await team.submit(4, model="secret")
    await admin.put("/admin/v1/namespaces/team-b", json={"batchjobs": None, "models": []})
    # Neither the view nor the database hands out what is not bound any more.
    await eventually(lambda: _waits_for_a_model(team, batch_id))
    for _ in range(10):
        await foreign.sync()
        assert foreign.held == {}
    await admin.put("/admin/v1/namespaces/team-b", json={"models": ["acme"]})
    await team.works_until(foreign, batch_id, "completed")


async def test_waiting_batches_are_those_that_the_service_could_serve(team: Lab) -> None:
    await put(team, PODS[:1])
    other = "/internal/v1/services/team-b/x"
    body = {"model": "tiny", "service_account": "x", "pods": []}
    await team.plane.admin.put(other, json=body)
    await team.plane.admin.put("/admin/v1/namespaces/team-b", json={"models": []})
    for agent in (pod(team, 0), team.agent("team-b.x", service="team-b/x")):
        await agent.ready()
    for _ in range(2):
        await team.submit(4)

    async def waiting() -> dict[str, int]:
        listed = (await team.plane.admin.get("/internal/v1/services")).json()["data"]
        return {item["namespace"]: item["waiting_batches"] for item in listed}

    assert await waiting() == {"team-a": 2, "team-b": 0}
    assert (await put(team, PODS[:1]))["waiting_batches"] == 2
    bound = await team.plane.admin.put("/admin/v1/namespaces/team-b", json={"models": ["acme"]})
    assert bound.status_code == 200, bound.text
    assert await waiting() == {"team-a": 2, "team-b": 2}


async def _waits_for_a_model(team: Lab, batch_id: str) -> bool:
    queue = (await team.plane.admin.get("/internal/v1/queue")).json()["data"]
    reasons = {item["batch_id"]: item["reason"] for item in queue}
    return bool(reasons.get(batch_id) == "NoMatchingModel")


async def submit(team: Lab, model: str) -> str:
    """The id of a batch that failed."""
    file = await team.openai.files.create(
        file=("in.jsonl", input_lines(2, model=model)), purpose="batch"
    )
    batch = await team.openai.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
    )
    await team.until(batch.id, "failed")
    return batch.id


@pytest.mark.postgres
async def test_of_two_bindings_at_once_one_holds(tmp_path: Path, postgres_url: str) -> None:
    """The union did: a tenant whose access had just been replaced kept it."""
    settings = make_settings(tmp_path, postgres_url)
    path = "/admin/v1/namespaces/team-b"
    async with running(settings) as plane, running(settings) as other:
        for name in ("old", "one", "two"):
            await plane.tenant_key(name)
        for _ in range(8):
            await plane.admin.put(path, json={"models": ["old"]})
            answers = await asyncio.gather(
                plane.admin.put(path, json={"models": ["one"]}),
                other.admin.put(path, json={"models": ["two"]}),
                other.admin.put(path, json={"models": ["two"]}),
            )
            assert [answer.status_code for answer in answers] == [200] * 3
            (bound,) = (await plane.admin.get("/admin/v1/namespaces")).json()["data"]
            assert bound["models"] in (["one"], ["two"])
