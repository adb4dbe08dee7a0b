"""What goes once a batch has ended: its chunks and their results."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import func, select, update

from tests.controlplane.bench import put_batch
from tests.controlplane.endings import (
    ALL,
    LINES,
    batch_of,
    custom_ids,
    ready,
)
from tests.controlplane.fleet import Fleet
from tests.controlplane.support import eventually
from weir_controlplane.batches.leftovers import (
    KEEP_S,
    forget_chunks,
    release,
    release_forever,
)
from weir_controlplane.batches.worker import work_once
from weir_controlplane.dispatch.commits import Commit, commit, sweepable
from weir_controlplane.dispatch.sweep import sweep_uploads
from weir_controlplane.services import Services
from weir_controlplane.store.models import Batch, Chunk, Suspect, Upload


async def test_chunk_results_are_given_up_long_after_the_files_are_there(
    services: Services,
) -> None:
    await ready(services)
    assert await work_once(services)
    assert await release(services) == 0  # a commit that is repeated now is still accepted
    async with services.database.transaction() as session:
        await session.execute(update(Batch).values(completed_at=Batch.completed_at - KEEP_S - 1))
        await session.execute(update(Upload).values(created_at=1.0))
    assert await release(services) == 1
    assert await release(services) == 0
    async with services.database.transaction() as session:
        keys = [row.storage_key for row in await sweepable(session, stale_after_s=60, limit=100)]
    assert sorted(keys) == await services.storage.keys("results")
    assert await custom_ids(services) == ALL


async def test_chunks_go_with_the_last_of_their_results(services: Services) -> None:
    """Their indexes grow with every line ever run; batch and files stay."""
    await ready(services)
    assert await work_once(services)
    async with services.database.transaction() as session:
        await session.execute(update(Batch).values(completed_at=Batch.completed_at - KEEP_S - 1))
        await session.execute(update(Upload).values(created_at=1.0))
        session.add(Suspect(batch_id="b", line=1, state="cleared", updated_at=1.0))
    assert await forget_chunks(services) == 0
    (held, *_) = await Fleet(services).chunks("b")
    assert await release(services) == 1
    assert await forget_chunks(services) == 0  # the sweeper needs them to find their results
    assert await sweep_uploads(services.database, services.storage, stale_after_s=60)
    assert await forget_chunks(services) == 1
    assert await Fleet(services).chunks("b") == []
    async with services.database.read() as session:
        assert (await session.execute(select(Suspect.line))).all() == []
    late = Commit(
        chunk_id=held.id, attempt=1, nonce="n", upload_id="u", ranges=((1, 1),), final=True
    )
    assert (await commit(services.database, late)).state == "gone"
    assert await custom_ids(services) == ALL
    assert (await batch_of(services)).total_lines == LINES


async def test_leftovers_go_as_fast_as_batches_end(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the pause between two looks is."""
    monkeypatch.setattr("weir_controlplane.batches.leftovers._BATCHES", 2)
    for _ in range(5):
        await put_batch(services.database, lines=4)
    async with services.database.transaction() as session:
        await session.execute(update(Batch).values(status="completed", completed_at=1.0))

    async def are_gone() -> bool:
        async with services.database.read() as session:
            return (await session.execute(select(func.count(Chunk.id)))).scalar_one() == 0

    seldom = services.settings.model_copy(update={"sweep_s": 3600})
    looking = asyncio.create_task(release_forever(replace(services, settings=seldom)))
    try:
        await eventually(are_gone, within_s=20)
    finally:
        looking.cancel()
