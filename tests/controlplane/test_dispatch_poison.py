"""Lines that kill engines, with simulated agents over HTTP, on both databases (§8.5)."""

from __future__ import annotations

import asyncio

from sqlalchemy import select, update

from tests.controlplane.agent_sim import Json, SimAgent, telemetry
from tests.controlplane.jobs import Lab
from weir_controlplane.dispatch.watch import expire_leases, release_agent
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.fleet_models import Agent
from weir_controlplane.store.models import Batch, Chunk, Suspect

ROOM = {"lines": 16, "tokens": 10_000_000, "result_bytes": 1 << 30}
ABOUT_S = 1.0  # between readings a replica knows about what the database's clock says


async def run_or_die(agent: SimAgent, lease: Json, poison: int, number: int) -> bool:
    """Runs a lease in an engine that ``poison`` kills; whether it died. Restarts it then."""
    lines = [item["line"] for item in await agent.lines(lease)]
    if poison not in lines:
        assert await agent.finish(lease) == "accepted"
        return False
    resident = [(lease, poison)] if lease["solo"] else [(lease, line) for line in lines]
    finished = [line for line in lines if line < poison] if lease["solo"] else []
    agent.dies(f"{agent.agent_id}-{number}", resident, solo=lease["solo"])
    deaths = agent.deaths
    agent.restart()
    agent.deaths = deaths
    await agent.sync()
    if finished and lease["chunk_id"] in agent.held:
        await agent.finish(agent.held[lease["chunk_id"]], only=finished)
    return True


async def heed_cancels(agent: SimAgent, reason: str = "suspects") -> None:
    """Hands back what the last reply asked to stop."""
    for item in agent.last["cancel"]:
        if item["chunk_id"] in agent.held:
            assert item["reason"] == reason
            agent.give_back(agent.held[item["chunk_id"]])


async def a_lease(desk: Lab, agent: SimAgent, *, solo: bool) -> Json:
    """The agent's only lease, once it has one; fails when it is of the other kind."""
    await desk.syncs_until(agent, lambda: bool(agent.held))
    (lease,) = agent.held.values()
    assert lease["solo"] == solo
    return lease


async def paused_s(desk: Lab) -> float:
    """For how long the only pod gets nothing."""
    (view,) = (await desk.plane.admin.get("/internal/v1/agents")).json()["data"]
    return float(view["paused_s"])


async def pause_is_over(desk: Lab, agent: SimAgent) -> None:
    """As if the pause had ended a second ago."""
    async with desk.plane.services.database.transaction() as session:
        await session.execute(update(Agent).values(pause_until=db_now() - 1))
    agent.restart()  # a new process asks the database anew


async def test_rule_5_a_line_that_kills_the_engine_fails_alone(desk: Lab) -> None:
    """§8.5: after two deaths as the only offline line it fails; every other line completes."""
    count, poison = 32, 11
    batch_id = await desk.submit(count)
    agents = [desk.agent("pod-0"), desk.agent("pod-1")]
    for agent in agents:
        await agent.ready()
    died: list[bool] = []
    async with asyncio.timeout(240):
        while True:
            batch = await desk.openai.batches.retrieve(batch_id)
            if batch.status == "completed":
                break
            for agent in agents:
                await agent.sync(room=ROOM)
                await heed_cancels(agent)
                solo = [lease for lease in agent.held.values() if lease["solo"]]
                assert not solo or len(agent.held) == 1, "a suspect shares its engine"
                for lease in list(agent.held.values()):
                    if await run_or_die(agent, lease, poison, len(died)):
                        died.append(lease["solo"])
                        break
            await asyncio.sleep(0.02)
    assert died == [False, True, True]
    found = await desk.assert_whole(batch, count)
    bad = found[f"line-{poison}"]
    assert bad["error"]["code"] == "engine_crash"
    assert bad["response"] is None
    assert sum(item["error"] is not None for item in found.values()) == 1
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (count - 1, 1)


async def test_rule_5_the_same_death_reported_again_counts_once(desk: Lab) -> None:
    """§8.5: a death is accepted once, however often it is reported."""
    await desk.submit(8, documents=1)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    (lease,) = agent.held.values()
    for _ in range(4):
        agent.dies("death-1", [(lease, 3)])
        reply = await agent.sync()
        assert reply["deaths_accepted"] == ["death-1"]
        assert reply["cancel"] == [{"chunk_id": lease["chunk_id"], "reason": "suspects"}]
    agent.give_back(lease)
    await agent.sync()
    # Died four times by its own account, once by ours: it is still a suspect, alone.
    await desk.syncs_until(agent, lambda: bool(agent.held))
    (alone,) = agent.held.values()
    assert alone["solo"]
    assert [item["line"] for item in await agent.lines(alone)] == [3]


async def test_rule_5_a_holder_that_does_not_stop_loses_its_suspects(desk: Lab) -> None:
    """§8.5, §8.4: after 30 s of grace the chunk is taken apart without it."""
    batch_id = await desk.submit(8, documents=1)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    (lease,) = agent.held.values()
    agent.dies("death-1", [(lease, 3), (lease, 4)])
    await agent.sync()
    async with desk.plane.services.database.transaction() as session:
        await session.execute(
            update(Chunk).where(Chunk.id == lease["chunk_id"]).values(revoked_at=db_now() - 31)
        )
    assert await expire_leases(desk.plane.services.database) == 1
    await desk.plane.services.nudge.send("chunks")
    seen: set[tuple[bool, tuple[int, ...]]] = set()
    async with asyncio.timeout(240):
        while (batch := await desk.openai.batches.retrieve(batch_id)).status != "completed":
            await agent.sync()
            for item in list(agent.held.values()):
                if item["chunk_id"] == lease["chunk_id"] and item["attempt"] == lease["attempt"]:
                    del agent.held[item["chunk_id"]]
                    continue
                lines = tuple(line["line"] for line in await agent.lines(item))
                seen.add((item["solo"], lines))
                assert await agent.finish(item) == "accepted"
            await asyncio.sleep(0.02)
    assert seen == {(True, (3, 4)), (False, (1, 2, 5, 6, 7, 8))}
    await desk.assert_whole(batch, 8)


async def test_rule_5_a_suspect_without_its_input_does_not_keep_its_pod(desk: Lab) -> None:
    """§8.5, §8.6: other batches run meanwhile, and it does when its input is there again."""
    batch_id = await desk.submit(4, documents=1)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    (lease,) = agent.held.values()
    agent.dies("death-1", [(lease, 3)])
    await agent.sync()
    agent.give_back(lease)
    await desk.syncs_until(agent, lambda: any(item["solo"] for item in agent.held.values()))
    (alone,) = agent.held.values()
    storage = desk.plane.services.storage
    (key,) = await storage.keys("files")
    content = await storage.read(key, 0, 1 << 20)
    await storage.delete(key)
    path = f"/internal/v1/chunks/{alone['chunk_id']}/lines"
    fence = {"attempt": alone["attempt"], "nonce": alone["nonce"]}
    assert (await desk.http.get(path, params=fence)).status_code == 503

    other = await desk.submit(4)
    async with asyncio.timeout(240):
        while (done := await desk.openai.batches.retrieve(other)).status != "completed":
            await agent.sync()
            await heed_cancels(agent, "suspended")
            for item in list(agent.held.values()):
                if item["batch_id"] == other:
                    assert await agent.finish(item) == "accepted"
            await asyncio.sleep(0.02)
    await desk.assert_whole(done, 4)
    queue = (await desk.plane.admin.get("/internal/v1/queue")).json()["data"]
    assert {item["batch_id"]: item["reason"] for item in queue}[batch_id] == "InputMissing"

    async with storage.writer(key) as writer:
        await writer.write(content)
    await desk.assert_whole(await desk.works_until(agent, batch_id, "completed"), 4)


async def test_rule_5_a_death_without_suspects_pauses_the_pod(desk: Lab) -> None:
    """§8.5: and other pods go on; after the pause so does this one."""
    batch_id = await desk.submit(40)
    bad, good = desk.agent("pod-0"), desk.agent("pod-1")
    await bad.ready()
    bad.dies("death-1", [])
    reply = await bad.sync()
    assert reply["deaths_accepted"] == ["death-1"]
    for _ in range(3):
        assert (await bad.sync())["chunks"] == []
    assert 0 < await paused_s(desk) <= 60 + ABOUT_S
    await good.ready()
    await desk.syncs_until(good, lambda: bool(good.held), room=ROOM)
    await pause_is_over(desk, bad)
    await desk.syncs_until(bad, lambda: bool(bad.held), room=ROOM)
    for agent in (bad, good):
        for lease in list(agent.held.values()):
            assert await agent.finish(lease) == "accepted"
    await desk.assert_whole(await desk.works_until(good, batch_id, "completed"), 40)


async def test_rule_1_a_pause_does_not_last_as_long_as_the_clock_was_ahead(desk: Lab) -> None:
    """§8.1: a pod was paused for a minute, then the database's clock is set back by an hour."""
    batch_id = await desk.submit(8, documents=1)
    agent = desk.agent()
    await agent.ready()
    agent.dies("death-1", [])
    await agent.sync()
    async with desk.plane.services.database.transaction() as session:
        await session.execute(update(Agent).values(pause_until=Agent.pause_until + 3600.0))
    agent.restart()
    await agent.ready()
    assert await paused_s(desk) > 3600
    await desk.assert_whole(await desk.works_until(agent, batch_id, "completed"), 8)


async def test_rule_5_work_between_two_deaths_makes_the_pause_short_again(desk: Lab) -> None:
    """§8.5: only an engine that dies again and again without doing anything pauses for longer."""
    batch_id = await desk.submit(8, documents=1)
    agent = desk.agent()
    await agent.ready()
    for number, least_s in enumerate((0, 60, 120)):
        agent.dies(f"death-{number}", [])
        await agent.sync()
        assert least_s < await paused_s(desk) <= max(60, 2 * least_s) + ABOUT_S
        await pause_is_over(desk, agent)
    await desk.syncs_until(agent, lambda: bool(agent.held))
    (lease,) = agent.held.values()
    assert await agent.finish(lease, only={1, 2, 3}) == "accepted"
    agent.dies("death-after-work", [])
    await agent.sync()
    assert 0 < await paused_s(desk) <= 60 + ABOUT_S
    await pause_is_over(desk, agent)
    await desk.assert_whole(await desk.works_until(agent, batch_id, "completed"), 8)


async def test_rule_5_committed_lines_are_never_suspects(desk: Lab) -> None:
    """§8.5: a death that names a line whose result is committed blames nobody."""
    batch_id = await desk.submit(8, documents=1)
    agent = desk.agent()
    await agent.ready()
    await desk.syncs_until(agent, lambda: bool(agent.held))
    (lease,) = agent.held.values()
    assert await agent.finish(lease, only={1, 2, 3}) == "accepted"
    for number in range(3):
        agent.dies(f"death-{number}", [(lease, 2)])
    await agent.sync()
    batch = await desk.works_until(agent, batch_id, "completed")
    found = await desk.assert_whole(batch, 8)
    assert all(item["error"] is None for item in found.values())


async def test_rule_5_an_agent_is_believed_of_its_own_lines_alone(desk: Lab) -> None:
    """Who named every other line of a batch in five deaths had all of them fail unrun."""
    batch_id = await desk.submit(40, documents=10)
    good, evil = desk.agent("pod-1"), desk.agent("pod-0")
    await evil.ready()
    await desk.syncs_until(evil, lambda: bool(evil.held), room={**ROOM, "lines": 4})
    own = {item["line"] for lease in evil.held.values() for item in await evil.lines(lease)}
    lease = next(iter(evil.held.values()))
    for number in range(5):
        evil.dies(f"d-{number}", [(lease, line) for line in range(1, 41) if line not in own])
    await evil.sync(room={**ROOM, "lines": 0})
    for held in list(evil.held.values()):
        await evil.finish(held)
    await good.ready()
    batch = await desk.works_until(good, batch_id, "completed")
    counts = batch.request_counts
    assert counts is not None
    assert (counts.completed, counts.failed) == (40, 0)


async def test_rule_5_a_chunk_that_another_pod_holds_says_nothing_of_its_lines(desk: Lab) -> None:
    batch_id = await desk.submit(8)
    holder, other = desk.agent("pod-0"), desk.agent("pod-1")
    await holder.ready()
    lease = await a_lease(desk, holder, solo=False)
    for number in range(2):
        other.dies(f"d-{number}", [(lease, 3)])
        await other.sync()
    batch = await desk.works_until(holder, batch_id, "completed")
    assert batch.request_counts is not None
    assert batch.request_counts.failed == 0
    async with desk.plane.services.database.read() as session:
        assert (await session.execute(select(Suspect.line))).all() == []


async def test_rule_5_a_death_told_late_suspects_no_line_that_others_have_answered(
    desk: Lab,
) -> None:
    """A model takes minutes to load: its chunk ran elsewhere meanwhile, in two parts."""
    await desk.submit(16, documents=2)
    late, other = desk.agent("pod-0"), desk.agent("pod-1")
    await late.ready()
    await other.ready()
    room = {**ROOM, "lines": 8}
    await desk.syncs_until(late, lambda: bool(late.held), room=room)
    lease = next(iter(late.held.values()))
    lines = [item["line"] for item in await late.lines(lease)]
    database = desk.plane.services.database
    await release_agent(database, "pod-0")
    await desk.syncs_until(other, lambda: lease["chunk_id"] in other.held, room=room)
    await other.finish(other.held[lease["chunk_id"]], only=lines[:3])
    left = len(lines) - 3
    await desk.syncs_until(
        other, lambda: any(held["lines"] == left for held in other.held.values()), room=room
    )
    (rest,) = [held for held in other.held.values() if held["lines"] == left]
    assert await other.finish(rest) == "accepted"
    late.restart()
    late.dies("late", [(lease, lines[-1])])
    await late.sync(state="starting")
    async with database.read() as session:
        assert (await session.execute(select(Suspect.line))).all() == []
        assert (await session.execute(select(Batch.deaths))).scalars().all() == [0]


async def test_rule_5_a_suspect_that_its_pod_cannot_run_goes_to_another(desk: Lab) -> None:
    """Online requests leave the first pod fewer blocks than the line needs."""
    batch_id = await desk.submit(8, documents=1)
    busy, agent = desk.agent("pod-0"), desk.agent("pod-1")
    full = telemetry(online_kv_blocks=995)
    await busy.sync(telemetry=full)
    await agent.ready()
    whole = await a_lease(desk, agent, solo=False)
    agent.dies("d1", [(whole, 3)])
    await agent.sync()
    agent.give_back(whole)
    alone = None
    async with asyncio.timeout(60):
        while alone is None:
            await busy.sync(telemetry=full)
            for held in list(busy.held.values()):
                alone = held if held["solo"] else alone
                busy.give_back(held)
            await agent.work()
            await asyncio.sleep(0.05)
        nothing = {"lines": 0, "tokens": 0, "result_bytes": 0}
        while (await desk.openai.batches.retrieve(batch_id)).status != "completed":
            await busy.sync(telemetry=full, room=nothing)  # it found that the line does not fit
            await agent.work()
            await asyncio.sleep(0.05)
    counts = (await desk.openai.batches.retrieve(batch_id)).request_counts
    assert counts is not None
    assert (counts.completed, counts.failed) == (8, 0)


async def test_rule_5_a_batch_outlives_engines_that_die_without_its_doing(desk: Lab) -> None:
    """§8.5: four faults hours apart, whose suspects all answer, make the fifth no worse."""
    batch_id = await desk.submit(8, documents=1)
    agent = desk.agent()
    await agent.ready()
    for number in range(5):
        whole = await a_lease(desk, agent, solo=False)
        lines = [item["line"] for item in await agent.lines(whole)]
        resident = lines[:1] if number < 4 else lines
        agent.dies(f"death-{number}", [(whole, line) for line in resident])
        await agent.sync()
        agent.give_back(whole)
        alone = await a_lease(desk, agent, solo=True)
        assert [item["line"] for item in await agent.lines(alone)] == resident
        assert await agent.finish(alone) == "accepted"
    batch = await desk.works_until(agent, batch_id, "completed")
    found = await desk.assert_whole(batch, 8)
    assert all(item["error"] is None for item in found.values())


async def test_rule_5_suspects_run_on_a_pod_that_cannot_store_all_of_them(desk: Lab) -> None:
    """§8.5: it is the only pod that may, so it gets as many as it can store."""
    batch_id = await desk.submit(8, documents=1)
    agent = desk.agent()
    await agent.ready()
    whole = await a_lease(desk, agent, solo=False)
    lines = [item["line"] for item in await agent.lines(whole)]
    agent.dies("death-1", [(whole, line) for line in lines])
    await agent.sync()
    agent.give_back(whole)
    small = {**ROOM, "result_bytes": 5 << 20, "line_result_bytes": 1 << 20}
    for expected in (5, 3):
        await desk.syncs_until(agent, lambda: bool(agent.held), room=small)
        (lease,) = agent.held.values()
        assert (lease["solo"], lease["lines"]) == (True, expected)
        assert await agent.finish(lease) == "accepted"
    await desk.assert_whole(await desk.until(batch_id, "completed"), 8)


async def test_rule_5_suspects_run_on_a_pod_that_serves_their_model(desk: Lab) -> None:
    """§8.5: the one pod for them is one of those that could run them."""
    batch_id = await desk.submit(8, documents=1)
    other, agent = desk.agent("pod-0", model="other"), desk.agent("pod-1")
    await other.ready()
    await agent.ready()
    whole = await a_lease(desk, agent, solo=False)
    agent.dies("death-1", [(whole, 3)])
    await agent.sync()
    agent.give_back(whole)
    async with asyncio.timeout(60):
        while (batch := await desk.openai.batches.retrieve(batch_id)).status != "completed":
            await other.sync()
            await agent.work()
            await asyncio.sleep(0.02)
    assert other.held == {}
    await desk.assert_whole(batch, 8)


async def test_rule_5_suspects_run_on_a_pod_that_may_run_batch_lines(desk: Lab) -> None:
    """§8.5: and not on the first by id while online requests need all of its KV blocks."""
    batch_id = await desk.submit(8, documents=1)
    crowded, agent = desk.agent("pod-0"), desk.agent("pod-1")
    full = telemetry(online_kv_blocks=1000)
    await crowded.sync(telemetry=full)
    await agent.ready()
    whole = await a_lease(desk, agent, solo=False)
    agent.dies("death-1", [(whole, 3)])
    await agent.sync()
    agent.give_back(whole)
    async with asyncio.timeout(60):
        while (batch := await desk.openai.batches.retrieve(batch_id)).status != "completed":
            await crowded.sync(telemetry=full)
            await agent.work()
            await asyncio.sleep(0.02)
    assert crowded.held == {}
    await desk.assert_whole(batch, 8)
