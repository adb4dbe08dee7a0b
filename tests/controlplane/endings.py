"""A batch of sixty lines on its way to its end, and what is left of it."""

from __future__ import annotations

import json
from collections import Counter

from sqlalchemy import select, update

from tests.controlplane.bench import put_submitted
from tests.controlplane.fleet import Fleet
from weir_controlplane.app import make_services
from weir_controlplane.batches.worker import work_once
from weir_controlplane.services import Services
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.models import Batch, Chunk, File

LINES = 60


def replica_of(services: Services) -> Services:
    """Another worker on the same database and files."""
    made = make_services(services.settings)
    return Services(**{**vars(made), "database": services.database, "replica": f"{made.replica}-2"})


async def ready(services: Services, *, fails: tuple[int, ...] = (3,)) -> str:
    """A batch whose every line is committed, about to be finalized."""
    batch_id = await opened(services)
    await Fleet(services).finish(batch_id, fails=fails)
    return batch_id


async def opened(services: Services) -> str:
    """A batch in progress."""
    content = b"".join(
        json.dumps(
            {
                "custom_id": f"c{n}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {"model": "tiny", "prompt": f"{n % 5}" * 700 + str(n), "max_tokens": 4},
            }
        ).encode()
        + b"\n"
        for n in range(1, LINES + 1)
    )
    async with services.storage.writer("files/in") as writer:
        await writer.write(content)
    batch_id = await put_submitted(services.database, content=content)
    assert await work_once(services)
    return batch_id


async def batch_of(services: Services) -> Batch:
    async with services.database.read() as session:
        return await session.get_one(Batch, "b")


async def custom_ids(services: Services) -> Counter[str]:
    """How often each custom_id occurs in the output and error files together."""
    batch = await batch_of(services)
    found: Counter[str] = Counter()
    for file_id in (batch.output_file_id, batch.error_file_id):
        if file_id is not None:
            async with services.database.read() as session:
                file = await session.get_one(File, file_id)
            assert file.status == "processed"
            content = await services.storage.read(file.storage_key, 0, 1 << 30)
            assert len(content) == file.size_bytes
            found.update(json.loads(line)["custom_id"] for line in content.splitlines())
    return found


ALL = Counter(f"c{n}" for n in range(1, LINES + 1))


async def file_ids(services: Services) -> set[str]:
    async with services.database.read() as session:
        return set((await session.execute(select(File.id))).scalars())


def outputs(services: Services) -> list[str]:
    folder = services.settings.data_dir / "files" / "outputs"
    return [str(path) for path in folder.rglob("*") if path.is_file()]


async def free_lease(services: Services) -> None:
    """Lets the lease run out, as time would."""
    async with services.database.transaction() as session:
        await session.execute(update(Batch).values(work_lease_until=0.0))


async def error_codes(services: Services) -> dict[str, str | None]:
    """The code of each line of the error file, by custom_id."""
    batch = await batch_of(services)
    async with services.database.read() as session:
        file = await session.get_one(File, batch.error_file_id)
    lines = (await services.storage.read(file.storage_key, 0, 1 << 20)).splitlines()
    return {item["custom_id"]: item["error"]["code"] for item in map(json.loads, lines)}


async def lease_first(services: Services) -> Chunk:
    """A chunk of the batch that an agent holds."""
    chunk = (await Fleet(services).chunks("b"))[0]
    async with services.database.transaction() as session:
        await session.execute(
            update(Chunk)
            .where(Chunk.id == chunk.id)
            .values(state="leased", nonce="n", lease_until=db_now() + 90)
        )
    return chunk


async def end_window(services: Services, *, ago_s: float) -> None:
    async with services.database.transaction() as session:
        await session.execute(update(Batch).values(expires_at=db_now() - ago_s))
