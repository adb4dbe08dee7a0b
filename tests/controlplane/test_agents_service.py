"""Syncs as agents and operators see them: who may call, policies, history, load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import select, update

from tests.controlplane.agent_sim import telemetry
from tests.controlplane.bench import Process, chunks_of, put_batch
from tests.controlplane.jobs import Lab, lab
from tests.controlplane.support import eventually, make_settings, running
from weir_controlplane.agents import announced
from weir_controlplane.agents import service as agents_service
from weir_controlplane.agents.announced import AnnouncedModels, forget_models
from weir_controlplane.agents.pace import Pace
from weir_controlplane.agents.registry import Registry
from weir_controlplane.agents.schemas import ServedModel as Announced
from weir_controlplane.agents.schemas import SyncRequest, Telemetry
from weir_controlplane.dispatch.errors import StaleIncarnationError
from weir_controlplane.dispatch.incarnations import forget_agents, forget_incarnations
from weir_controlplane.dispatch.settle import settle
from weir_controlplane.dispatch.work import ReportedDeath
from weir_controlplane.policy.decide import Policy
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database, clock_s
from weir_controlplane.store.fleet_models import (
    Agent,
    Death,
    Incarnation,
    ServedModel,
)
from weir_controlplane.store.kubernetes_models import LlmService
from weir_controlplane.store.models import Chunk


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Lab]:
    async with running(make_settings(tmp_path)) as plane, lab(plane) as desk:
        yield desk


async def test_only_an_agents_key_syncs_and_only_as_that_agent(desk: Lab) -> None:
    bound = await desk.plane.key(scope="agent", agent_id="pod-7")
    tenant = await desk.plane.key(tenant="acme")
    for key, agent_id, status in [
        (None, "pod-7", 401),
        ("weir_nonsense", "pod-7", 401),
        (tenant, "pod-7", 403),
        (bound, "pod-8", 403),
        (bound, "pod-7", 200),
    ]:
        async with desk.plane.client(key) as client:
            agent = desk.agent(agent_id)
            agent.client = client
            assert (await agent.post_sync()).status_code == status


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"sequence": 0}, "sequence"),
        ({"sequence": 10**30}, "sequence"),
        ({"incarnation": 10**30}, "incarnation"),
        ({"models": [{"name": "tiny", "max_model_len": 10**30}]}, "models.0.max_model_len"),
        ({"models": [{"name": "a\0"}]}, "models.0.name"),
        ({"boot_id": "a\0"}, "boot_id"),
        ({"service": "a\0"}, "service"),
        ({"state": "asleep"}, "state"),
        ({"room": {"lines": -1}}, "room.lines"),
        ({"chunks": [{"chunk_id": "c", "attempt": 1}]}, "chunks.0.nonce"),
        ({"telemetry": {"online_kv_blocks": "many"}}, "telemetry.online_kv_blocks"),
    ],
)
async def test_a_wrong_field_is_named(desk: Lab, wrong: dict[str, object], param: str) -> None:
    answer = await desk.agent().post_sync(**wrong)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["message"].startswith(f"{param}: ")


async def test_a_body_beyond_the_bound_or_no_json_is_refused(desk: Lab) -> None:
    path = "/internal/v1/agents/pod-0/sync"
    assert (await desk.http.post(path, content=b" " * (1 << 21))).status_code == 413
    answer = await desk.http.post(path, content=b"{")
    assert answer.status_code == 400
    assert "error" in answer.json()


async def test_unknown_fields_are_ignored(desk: Lab) -> None:
    assert (await desk.agent().post_sync(from_the_future={"x": 1})).status_code == 200


async def test_a_fresh_pod_gets_a_leased_conservative_policy(desk: Lab) -> None:
    agent = desk.agent()
    await agent.ready()
    policy = agent.last["policy"]
    assert policy["lease_s"] > 0
    assert policy["forecast"]["method"] == "fresh"
    assert policy["offline_kv_blocks"] == 300  # of 1,000
    assert policy["step_budget_s"] is None
    assert 0.9 <= agent.last["next_sync_s"] <= 15
    quiet = await agent.sync(telemetry={"total_blocks": 0})
    assert quiet["policy"] is None  # nothing is known of its blocks


async def test_what_online_requests_find_again_is_kept_from_offline_work(desk: Lab) -> None:
    """Design §1: a pod whose conversations come back needs their histories as well."""
    agent = desk.agent()
    await agent.sync(telemetry=telemetry(online_kv_blocks=100))
    before = agent.last["policy"]["offline_kv_blocks"]
    await agent.sync(telemetry=telemetry(online_kv_blocks=100, online_reuse_blocks=700))
    policy = agent.last["policy"]
    assert policy["forecast"]["online_kv_blocks"] == 800
    assert policy["offline_kv_blocks"] == 200 < before
    await agent.sync(telemetry=telemetry(online_kv_blocks=100))  # a quiet hour later
    assert agent.last["policy"]["offline_kv_blocks"] == before


async def test_operators_see_agents_with_telemetry_and_policy(desk: Lab) -> None:
    agent = desk.agent(revision="r1")
    await agent.sync(telemetry=telemetry(online_kv_blocks=123))
    assert (await desk.http.get("/internal/v1/agents")).status_code == 403
    answer = await desk.plane.admin.get("/internal/v1/agents")
    assert answer.status_code == 200
    (view,) = answer.json()["data"]
    assert (view["agent_id"], view["service"], view["state"]) == ("pod-0", "svc", "serving")
    assert view["models"] == [{"name": "tiny", "revision": "r1"}]  # no length: it said 4,096
    assert view["telemetry"]["online_kv_blocks"] == 123
    assert view["policy"] == agent.last["policy"]
    assert view["last_sync_age_s"] < 30


async def test_what_a_service_serves_can_be_named_by_batches(desk: Lab) -> None:
    await desk.agent(model="another").ready()
    async with desk.plane.services.database.read() as session:
        names = (await session.execute(select(ServedModel.name))).scalars().all()
    assert list(names) == ["another"]
    await desk.submit(2, model="another")


async def test_a_model_that_an_agent_says_later_can_be_named_too(desk: Lab) -> None:
    """Also by a sync that moves no lease; pods of two revisions beside each other both count."""
    old, new = desk.agent(), desk.agent()
    await old.sync(state="starting", models=[])
    await old.sync(models=[{"name": "another", "revision": "1"}])
    await new.sync(models=[{"name": "another", "revision": "2"}])
    await old.sync(models=[{"name": "another", "revision": "1"}])
    async with desk.plane.services.database.read() as session:
        rows = await session.execute(select(ServedModel.name, ServedModel.revision))
    assert sorted(tuple(row) for row in rows) == [("another", "1"), ("another", "2")]
    await desk.submit(2, model="another")


def says(*names: str, service: str = "svc") -> SyncRequest:
    return SyncRequest(
        boot_id="boot",
        sequence=1,
        service=service,
        models=[Announced(name=name) for name in names],
        state="serving",
    )


def fresh(number: int) -> list[str]:
    """64 names that no other number has."""
    return [f"model-{number}-{place}" for place in range(64)]


async def served(database: Database) -> list[str]:
    async with database.read() as session:
        rows = await session.execute(select(ServedModel.name).where(ServedModel.service == "svc"))
        return list(rows.scalars())


async def test_a_pod_that_says_other_models_each_time_fills_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was taken over must not fill the database, nor this process."""
    noted = AnnouncedModels()
    await noted.note(database, says("theirs", service="other"))
    for number in range(20):
        await noted.note(database, says(*fresh(number)))
    names = await served(database)
    assert len(names) <= 256
    assert set(names) >= {name for number in (17, 18, 19) for name in fresh(number)}
    assert len(noted._told["svc"]) <= 8
    async with database.read() as session:
        others = select(ServedModel.name).where(ServedModel.service == "other")
        assert (await session.execute(others)).scalars().all() == ["theirs"]
    monkeypatch.setattr(announced, "MAX_SERVICES", 3)
    for number in range(5):
        await noted.note(database, says("tiny", service=f"svc-{number}"))
    assert list(noted._told) == ["svc-2", "svc-3", "svc-4"]


async def test_models_that_are_served_are_never_the_oldest(database: Database) -> None:
    now_s = 0.0
    noted = AnnouncedModels(clock_s=lambda: now_s)
    await noted.note(database, says("live"))
    for number in range(3):
        await noted.note(database, says(*fresh(number)))
    now_s += 3601
    await noted.note(database, says("live"))
    for number in range(3, 5):
        await noted.note(database, says(*fresh(number)))
    names = await served(database)
    assert "live" in names
    assert len(names) == 256


async def test_a_model_that_was_crowded_out_is_back_at_the_next_sync(database: Database) -> None:
    noted = AnnouncedModels()
    await noted.note(database, says("live"))
    for number in range(4):
        await noted.note(database, says(*fresh(number)))
    assert "live" not in await served(database)
    await noted.note(database, says("live"))
    assert "live" in await served(database)


async def test_two_revisions_beside_each_other_are_not_written_at_every_sync(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle agents are answered from memory, in a rollout too."""
    noted = AnnouncedModels()
    await noted.note(database, says("old"))
    await noted.note(database, says("new"))
    monkeypatch.setattr(database, "transaction", None)
    for name in ("old", "new", "old", "new"):
        await noted.note(database, says(name))  # a transaction would fail
    monkeypatch.undo()
    assert sorted(await served(database)) == ["new", "old"]


@pytest.mark.parametrize("hangs", [False, True])
async def test_rule_11_without_its_database_what_is_known_is_not_written_again(
    database: Database, monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    """§8.11: nothing online waits for it."""
    now_s, asked = 0.0, 0

    @asynccontextmanager
    async def away() -> AsyncIterator[None]:
        nonlocal asked
        asked += 1
        if not hangs:
            raise ConnectionRefusedError
        await asyncio.Event().wait()
        yield

    noted = AnnouncedModels(clock_s=lambda: now_s)
    await noted.note(database, says("live"))
    monkeypatch.setattr(database, "transaction", away)
    monkeypatch.setattr(announced, "_REFRESH_WAIT_S", 0.01)
    now_s += 3601
    for _ in range(3):
        await noted.note(database, says("live"))
    assert asked == 1
    with pytest.raises(ConnectionRefusedError if not hangs else TimeoutError):
        async with asyncio.timeout(0.1):
            await noted.note(database, says("unheard of"))


async def test_rule_11_an_overloaded_replica_says_when_to_come_back(
    desk: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.11: 503 with Retry-After of at most a minute, before it falls over."""
    monkeypatch.setattr(agents_service, "MAX_SYNCS", 0)
    answer = await desk.agent().post_sync()
    assert answer.status_code == 503
    assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_rule_11_the_next_sync_is_jittered_and_later_under_load() -> None:
    """§8.11: every reply names the time of the next."""
    pace = Pace()
    calm = [pace.next_sync_s() for _ in range(200)]
    assert len(set(calm)) > 100
    assert 0.9 <= min(calm) <= max(calm) <= 1.1
    for _ in range(500):
        pace.took(0.5)
    busy = [pace.next_sync_s() for _ in range(200)]
    assert min(busy) > 5
    assert max(busy) <= 15
    assert 1 <= pace.retry_after_s() <= 60


async def test_rule_11_without_its_database_the_plane_still_answers_idle_agents(
    desk: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.11: nothing online waits for it: policies go on, what moves leases is told to wait."""
    known, new = desk.agent("pod-0"), desk.agent("pod-1")
    await known.ready()

    async def away(*_arguments: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(agents_service, "settle", away)
    assert (await known.sync())["policy"] is not None
    refused = await new.post_sync()
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) <= 60


async def test_the_fleets_metrics_are_there(desk: Lab) -> None:
    await desk.agent().sync(telemetry=telemetry(online_kv_blocks=321))
    shown = {"service": "svc", "agent": "pod-0"}
    await desk.syncs_until(
        desk.agent("pod-1"),
        lambda: REGISTRY.get_sample_value("weir_pod_online_kv_blocks", shown) == 321,
        state="starting",
    )
    assert REGISTRY.get_sample_value("weir_pod_kv_blocks", shown) == 1000
    assert REGISTRY.get_sample_value("weir_pod_offline_kv_threshold_blocks", shown) == 300
    assert REGISTRY.get_sample_value("weir_agents", {"state": "serving"}) == 1


async def test_rule_1_leases_of_many_agents_are_renewed_together(database: Database) -> None:
    """§8.1: renewed at a third; one that is lost is left to the database to tell."""
    registry = Registry()
    batch_id = await put_batch(database, lines=8)
    wanted = [chunk.id for chunk in await chunks_of(database, batch_id)]
    for number, chunk_id in enumerate(wanted):
        process = Process(agent_id=f"pod-{number}")
        process.incarnation = (await settle(database, process.work())).incarnation
        settled = await settle(database, process.work(wanted=[chunk_id]))
        entry = registry.entry(process.agent_id)
        entry.holds = dict(settled.holds)
        entry.local, entry.seen_at, entry.renewed_at = True, 99.0, 0.0
    lost, kept = wanted
    async with database.transaction() as session:
        await session.execute(update(Chunk).values(lease_until=db_now() + 1))
        await session.execute(update(Chunk).where(Chunk.id == lost).values(nonce="taken"))
    assert await registry.renew(database, 100.0) == 1
    until = {chunk.id: chunk.lease_until or 0.0 for chunk in await chunks_of(database, batch_id)}
    now_s = await database.now_s()
    assert until[kept] > now_s + 80
    assert until[lost] < now_s + 2
    assert registry.entry("pod-1").renewed_at == 100.0
    assert registry.entry("pod-0").renewed_at == 0.0


async def test_what_agents_say_reaches_the_other_replicas(database: Database) -> None:
    process = Process(agent_id="pod-0")
    settled = await settle(database, process.work())
    here, there = Registry(), Registry()
    entry = here.entry("pod-0")
    entry.incarnation, entry.service, entry.state = settled.incarnation, "svc", "serving"
    entry.models, entry.written = {"tiny": "r1"}, False
    entry.policy = Policy(
        lease_s=90.0,
        offline_kv_blocks=0,
        offline_seq_slots=0,
        step_budget_s=None,
        method="fresh",
        forecast_blocks=900,
    )
    entry.seen_at, entry.local = 98.0, True
    assert await here.write(database, 100.0) == 1
    assert await here.write(database, 100.0) == 0  # nothing new
    await here.read(database, 100.0)
    assert entry.local  # its own word is no news to it
    await there.read(database, 1000.0)
    (seen,) = there.alive(1000.0)
    assert (seen.agent_id, seen.state, seen.models) == ("pod-0", "serving", {"tiny": "r1"})
    assert seen.policy == entry.policy
    async with database.transaction() as session:
        await session.execute(update(Agent).values(last_sync_at=db_now() - 3600))
    await there.read(database, 5000.0)
    assert there.agents == {}  # long gone


async def test_chunks_held_by_agents_of_other_replicas_are_counted(
    desk: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir_controlplane.agents.runtime.PRESENCE_EVERY_S", 0.05)
    database = desk.plane.services.database
    batch_id = await desk.submit(64)
    elsewhere = Process(agent_id="elsewhere")
    elsewhere.incarnation = (await settle(database, elsewhere.work())).incarnation
    chunks = [chunk.id for chunk in await chunks_of(database, batch_id)]
    assert len((await settle(database, elsewhere.work(wanted=chunks))).grants) == len(chunks) > 1
    here = desk.agent("here")
    await here.ready()

    async def held() -> dict[str, int]:
        answer = await desk.plane.admin.get("/internal/v1/agents")
        return {item["agent_id"]: item["held_chunks"] for item in answer.json()["data"]}

    async def are_counted() -> bool:
        return await held() == {"elsewhere": len(chunks), "here": 0}

    await eventually(are_counted)


async def test_agents_that_were_silent_for_a_week_are_forgotten(database: Database) -> None:
    """Each pod of a deployment is an agent of its own: they would become ever more."""
    now_s = await database.now_s()
    died = ReportedDeath(death_id="d", kind="crash", solo=False, resident=())
    batch_id = await put_batch(database, lines=4)
    processes = {name: Process(agent_id=name) for name in ("gone", "holder", "here")}
    for process in processes.values():
        process.incarnation = (await settle(database, process.work())).incarnation
        await settle(database, process.work(deaths=[died]))
    async with database.transaction() as session:
        await session.execute(update(Agent).values(pause_until=None))
    chunks = [chunk.id for chunk in await chunks_of(database, batch_id)]
    assert (await settle(database, processes["holder"].work(wanted=chunks))).grants
    async with database.transaction() as session:
        silent = update(Agent).where(Agent.agent_id != "here")
        await session.execute(silent.values(last_sync_at=now_s - 7 * 86_400 - 60))
        old = update(Death).where(Death.agent_id == "here")
        await session.execute(old.values(at=now_s - 7 * 86_400 - 60))
    assert await forget_agents(database) == 1
    assert await forget_agents(database) == 0
    async with database.read() as session:
        left = {
            model: set((await session.execute(select(model.agent_id))).scalars())
            for model in (Agent, Incarnation, Death)
        }
    assert left == {Agent: {"holder", "here"}, Incarnation: {"holder", "here"}, Death: {"holder"}}
    with pytest.raises(StaleIncarnationError):  # and starts over, when it comes back
        await settle(database, processes["gone"].work())
    processes["gone"].incarnation = None
    assert (await settle(database, processes["gone"].work())).incarnation


async def test_processes_of_an_agent_that_lives_on_are_forgotten(database: Database) -> None:
    """One that crashes every few minutes had thousands in a month."""
    batch_id = await put_batch(database, lines=4)
    processes = [Process(agent_id="here", boot=boot) for boot in range(5)]
    issued = [(await settle(database, process.work())).incarnation for process in processes]
    process = processes[-1]
    process.incarnation = issued[-1]
    chunks = [chunk.id for chunk in await chunks_of(database, batch_id)]
    assert (await settle(database, process.work(wanted=chunks))).grants
    assert await forget_incarnations(database) == 0
    async with database.transaction() as session:
        now_s = await clock_s(session)
        await session.execute(update(Chunk).values(leased_by=issued[0]))  # an outage since then
        old = update(Incarnation).where(Incarnation.id.in_(issued[:3]))
        await session.execute(old.values(created_at=now_s - 7 * 86_400 - 60))
    assert await forget_incarnations(database) == 1
    async with database.transaction() as session:
        found = await session.execute(select(Incarnation.id).order_by(Incarnation.id))
        # The third was at work until the fourth came, a moment ago.
        assert list(found.scalars()) == [issued[0], *issued[2:]]
        await session.execute(update(Chunk).values(state="done"))
    assert await forget_incarnations(database) == 1
    assert (await settle(database, process.work())).incarnation == issued[-1]


async def test_a_model_that_is_served_no_more_is_forgotten_in_a_week(database: Database) -> None:
    """A batch that names it would wait for its whole window, for pods that never come."""
    noted = AnnouncedModels()
    for service in ("svc", "ns/asleep", "gone"):
        await noted.note(database, says("old", service=service))
    await noted.note(database, says("new"))
    await settle(database, Process(agent_id="pod").work())
    asleep = LlmService(
        id="ns/asleep",
        namespace="ns",
        name="asleep",
        model=None,
        service_account="asleep",
        updated_at=0.0,
    )
    async with database.transaction() as session:
        session.add(asleep)  # scaled to nothing, it may come back
        old = update(ServedModel).where(ServedModel.name == "old")
        await session.execute(old.values(seen_at=db_now() - 7 * 86_400 + 60))
    assert await forget_models(database) == 0
    async with database.transaction() as session:
        await session.execute(old.values(seen_at=db_now() - 7 * 86_400 - 60))
    assert await forget_models(database) == 2
    async with database.read() as session:
        rows = await session.execute(select(ServedModel.service, ServedModel.name))
        left = {(row.service, row.name) for row in rows}
    assert left == {("svc", "new"), ("ns/asleep", "old")}


def test_the_protocol_page_names_every_field_of_a_sync() -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    from weir_controlplane.agents.schemas import Lease, SyncReply, SyncRequest

    for model in (SyncRequest, SyncReply, Telemetry, Lease):
        missing = [name for name in model.model_fields if f"{name}" not in page]
        assert not missing, f"{model.__name__}: {missing}"
    assert json.loads(SyncReply(incarnation=1, next_sync_s=1.0).model_dump_json())["policy"] is None
