"""Several replicas as processes of their own, on one PostgreSQL and one Redis, killed in turn."""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.controlplane.agent_sim import SimAgent
from tests.controlplane.jobs import ENDPOINT, Lab, input_lines
from tests.controlplane.plane_process import is_ready, start
from tests.controlplane.support import Plane
from tests.support.processes import free_port, wait_ready

LINES = 120
KILLS = 2  # each replica once
ROOM = {"lines": 8, "tokens": 10_000_000, "result_bytes": 1 << 30}


class Replica:
    """One control plane as a process, always on the same port."""

    def __init__(self, folder: Path, name: str, settings: dict[str, object]) -> None:
        self.log = folder / f"{name}.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; returns when it is ready."""
        self.process = start(self.log, **self.settings, port=self.port)
        wait_ready(self.process, lambda: is_ready(self.url), self.log, within_s=240)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def replicas(tmp_path: Path, postgres_url: str, redis_url: str) -> Iterator[list[Replica]]:
    settings: dict[str, object] = {
        "data_dir": tmp_path / "data",
        "database_url": postgres_url,
        "redis_url": redis_url,
        "database_pool_connections": 5,
        "models": "tiny",
        "chunk_lines": 4,
        "poll_s": 0.5,
        "work_lease_s": 2,
    }
    made = [Replica(tmp_path, name, settings) for name in ("one", "two")]
    try:
        for replica in made:
            replica.start()
        yield made
    finally:
        for replica in made:
            replica.kill()


async def work(agent: SimAgent, clients: list[httpx.AsyncClient], ended: asyncio.Event) -> None:
    """Works like an agent whose every lost answer makes it a new process, at another replica."""
    turn = 0
    while not ended.is_set():
        try:
            await agent.sync(room=ROOM)
            for lease in list(agent.held.values()):
                await agent.finish(lease)
        except httpx.TransportError:
            turn += 1
            agent.restart()
            agent.client = clients[turn % 2]
        await asyncio.sleep(0.2)


async def retrieve(clients: list[openai.AsyncOpenAI], batch_id: str) -> openai.types.Batch:
    """The batch, from whichever replica answers."""
    for client in clients:
        try:
            return await client.batches.retrieve(batch_id)
        except openai.APIConnectionError:
            continue
    raise AssertionError("no replica answers")


@pytest.mark.system
@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.timeout(600)
async def test_a_batch_outlives_every_replica_that_is_killed(
    replicas: list[Replica], tmp_path: Path
) -> None:
    """§8.2, §8.6, §8.13: the others go on; what a dead one was doing is done again, once."""
    chance = random.Random(3)  # noqa: S311 - when to strike
    admin = (tmp_path / "data" / "admin.key").read_text().strip()
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {admin}"}, timeout=60) as http:
        plane = Plane(url=replicas[0].url, app=None, services=None, admin=http)  # type: ignore[arg-type]
        http.base_url = httpx.URL(replicas[0].url)
        tenant, key = await plane.tenant_key("acme"), await plane.key(scope="agent")
    doors = [
        openai.AsyncOpenAI(base_url=f"{item.url}/v1", api_key=tenant, max_retries=0)
        for item in replicas
    ]
    clients = [
        httpx.AsyncClient(base_url=item.url, headers={"Authorization": f"Bearer {key}"}, timeout=60)
        for item in replicas
    ]
    agents = [SimAgent(client=clients[number], agent_id=f"pod-{number}") for number in (0, 1)]
    ended = asyncio.Event()
    file = await doors[0].files.create(file=("in.jsonl", input_lines(LINES)), purpose="batch")
    batch = await doors[0].batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
    )
    tasks = [asyncio.create_task(work(agent, clients, ended)) for agent in agents]
    for number in range(KILLS):
        await asyncio.sleep(chance.uniform(0, 0.5))
        victim = replicas[number % 2]
        victim.kill()
        await retrieve(doors, batch.id)  # the other one answers meanwhile
        await asyncio.to_thread(victim.start)
    async with asyncio.timeout(300):
        while (found := await retrieve(doors, batch.id)).status != "completed":
            assert found.status in {"validating", "in_progress", "finalizing"}, found
            await asyncio.sleep(0.2)
    ended.set()
    await asyncio.gather(*tasks)
    desk = Lab(plane=plane, openai=doors[1], http=clients[1])
    whole = await desk.assert_whole(found, LINES)
    assert len(whole) == LINES
    for client in clients:
        await client.aclose()
    for door in doors:
        await door.close()
