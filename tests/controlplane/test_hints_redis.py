"""Hints over a real Redis: they make things faster, and nothing depends on them (§8.13)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import openai
import pytest
from pydantic import SecretStr
from redis.asyncio import Redis

from tests.controlplane.agent_sim import SimAgent
from tests.controlplane.jobs import Lab
from tests.controlplane.support import Plane, eventually, make_settings
from tests.support.redis_server import RedisServer
from tests.support.serving import serve
from weir_controlplane.app import create_app, make_services
from weir_controlplane.hints.component import make_nudge
from weir_controlplane.hints.redis_streams import KEPT_HINTS, STREAM, RedisNudge
from weir_controlplane.keys import authenticator
from weir_controlplane.main import default_components
from weir_controlplane.services import LocalNudge

pytestmark = pytest.mark.redis
ROOM = {"lines": 16, "tokens": 10_000_000, "result_bytes": 1 << 30}


async def end(task: asyncio.Task[None]) -> None:
    """Cancels until it is heard: the client loses a cancellation that meets an answer."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.2)


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[RedisNudge]:
    nudge = RedisNudge(url)
    task = asyncio.create_task(nudge.listen())
    await nudge.connected()
    try:
        yield nudge
    finally:
        await end(task)
        await nudge.close()


async def test_a_hint_wakes_the_other_replica_and_itself(redis_url: str) -> None:
    async with listening(redis_url) as one, listening(redis_url) as two:
        begun = time.monotonic()
        waits = (nudge.wait("chunks", 200.0) for nudge in (one, two))
        await asyncio.gather(*waits, one.send("chunks"))
        assert time.monotonic() - begun < 200.0


async def test_a_hint_for_another_topic_does_not_wake(redis_url: str) -> None:
    async with listening(redis_url) as nudge:
        await nudge.send("batches")
        waiting = asyncio.create_task(nudge.wait("chunks", 300.0))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await nudge.send("chunks")
        await asyncio.wait_for(waiting, 250.0)  # its own hint ends it


async def test_rule_13_the_stream_is_trimmed(redis_url: str) -> None:
    """§8.13: streams are trimmed."""
    nudge = RedisNudge(redis_url)
    for _ in range(3 * KEPT_HINTS // 20):  # a few at a time: a send gives up after half a second
        await asyncio.gather(*(nudge.send("chunks") for _ in range(20)))
    await nudge.close()
    redis = Redis.from_url(redis_url)
    kept = await redis.xlen(STREAM)
    await redis.aclose()
    assert KEPT_HINTS <= kept < 2 * KEPT_HINTS


async def test_rule_13_without_redis_sending_and_waiting_still_work() -> None:
    """§8.13: Redis away costs latency, never an error."""
    nudge = RedisNudge("redis://127.0.0.1:1/0")
    task = asyncio.create_task(nudge.listen())
    await nudge.send("chunks")
    async with asyncio.timeout(250):  # less than the wait: our own hint needs no Redis
        await nudge.wait("chunks", 300.0)
        await nudge.wait("chunks", 0.05)
    assert not task.done()
    await end(task)
    await nudge.close()


def test_the_settings_choose_where_hints_go(tmp_path: Path) -> None:
    assert isinstance(make_nudge(make_settings(tmp_path)), LocalNudge)
    settings = make_settings(tmp_path, redis_url=SecretStr("redis://127.0.0.1:1/0"))
    assert isinstance(make_nudge(settings), RedisNudge)


@asynccontextmanager
async def replicas(
    folder: Path, database_url: str, redis_url: str, count: int
) -> AsyncIterator[list[Plane]]:
    """Control planes on one PostgreSQL and one Redis."""
    async with AsyncExitStack() as stack:
        planes = []
        for _ in range(count):
            settings = make_settings(
                folder,
                database_url,
                redis_url=SecretStr(redis_url),
                chunk_lines=8,
                poll_s=2.0,
                database_pool_connections=5,
            )
            services = make_services(settings, nudge=make_nudge(settings))
            app = create_app(services, default_components())
            url = await stack.enter_async_context(serve(app))
            key = settings.admin_key.read_text(encoding="utf-8").strip()
            plane = Plane(url=url, app=app, services=services, admin=None)  # type: ignore[arg-type]
            admin = await stack.enter_async_context(plane.client(key))
            planes.append(Plane(url=url, app=app, services=services, admin=admin))
        yield planes


@pytest.mark.postgres
async def test_a_key_that_one_replica_revokes_is_forgotten_by_the_other(
    tmp_path: Path, postgres_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent's is remembered for a minute otherwise."""
    monkeypatch.setattr(authenticator, "AGENT_CACHE_S", 3600.0)
    async with replicas(tmp_path, postgres_url, redis_url, 2) as (one, two):
        key = await one.key(scope="agent")
        listed = (await one.admin.get("/admin/v1/keys")).json()["data"]
        (key_id,) = [item["id"] for item in listed if item["scope"] == "agent"]

        async with two.client(key) as agent:

            async def status() -> int:
                return (await agent.get("/internal/v1/agents")).status_code

            assert await status() == 403  # known, and no administrator
            assert (await one.admin.delete(f"/admin/v1/keys/{key_id}")).status_code == 200

            async def is_refused() -> bool:
                return await status() == 401

            await eventually(is_refused, within_s=240.0)


@pytest.mark.postgres
async def test_rule_13_replicas_and_crashing_agents_lose_nothing_while_redis_does(
    tmp_path: Path, postgres_url: str, redis_server: RedisServer, redis_url: str
) -> None:
    """§8.13, §8.2: two replicas, four agents that crash at random and change replica, Redis
    flushed and restarted meanwhile: every line is answered once."""
    count = 96
    chance = random.Random(7)  # noqa: S311 - a repeatable test
    async with replicas(tmp_path, postgres_url, redis_url, 2) as planes, AsyncExitStack() as stack:
        tenant = await planes[0].tenant_key("acme")
        key = await planes[0].key(scope="agent")
        clients = [await stack.enter_async_context(plane.client(key)) for plane in planes]
        client = await stack.enter_async_context(
            openai.AsyncOpenAI(base_url=f"{planes[1].url}/v1", api_key=tenant)
        )
        desk = Lab(plane=planes[1], openai=client, http=clients[1])
        batch_id = await desk.submit(count, documents=12)
        agents = [SimAgent(client=clients[n % 2], agent_id=f"pod-{n}") for n in range(4)]
        ended = asyncio.Event()

        async def run(agent: SimAgent) -> None:
            while not ended.is_set():
                await agent.sync(room=ROOM)
                for lease in list(agent.held.values()):
                    if chance.random() < 0.2:
                        agent.restart()
                        agent.client = clients[chance.randrange(2)]
                        break
                    lines = [item["line"] for item in await agent.lines(lease)]
                    some = set(lines[: chance.randrange(1, len(lines) + 1)])
                    assert await agent.finish(lease, only=some) == "accepted"
                await asyncio.sleep(0.02)

        async def disturb() -> None:
            redis_server.flush()
            await asyncio.sleep(0.5)
            redis_server.kill()
            await asyncio.sleep(0.5)
            redis_server.start()

        tasks = [asyncio.create_task(run(agent)) for agent in agents]
        tasks.append(asyncio.create_task(disturb()))
        batch = await desk.until(batch_id, "completed")
        ended.set()
        await asyncio.gather(*tasks)
        await desk.assert_whole(batch, count)
