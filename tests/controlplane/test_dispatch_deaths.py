"""Deaths of several agents at once, below HTTP, on both databases (§8.5)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import select, text, update

from tests.controlplane.bench import (
    Process,
    assert_nothing_lost_or_doubled,
    chunks_of,
    commit_lines,
    put_batch,
    upload,
)
from weir_controlplane.dispatch.settle import settle
from weir_controlplane.dispatch.watch import close_ending, release_agent
from weir_controlplane.dispatch.work import Grant, ReportedDeath
from weir_controlplane.files.storage import Storage
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database
from weir_controlplane.store.line_index import unpack_lines
from weir_controlplane.store.models import Batch, Suspect, Upload

ROUNDS = 8


def died(process: Process, resident: Grant, line: int) -> ReportedDeath:
    return ReportedDeath(
        death_id=f"{process.agent_id}-{process.boot}",
        kind="crash",
        solo=False,
        resident=((resident.chunk_id, resident.attempt, line),),
    )


async def first_line(database: Database, chunk_id: str, batch_id: str) -> int:
    (chunk,) = (item for item in await chunks_of(database, batch_id) if item.id == chunk_id)
    return unpack_lines(chunk.line_index)[0].line


async def lease(database: Database, process: Process, wanted: Sequence[str]) -> dict[str, Grant]:
    """Leases these chunks to the process; the last of each batch, by batch."""
    process.incarnation = (await settle(database, process.work())).incarnation
    grants = (await settle(database, process.work(wanted=wanted))).grants
    assert len(grants) == len(wanted)
    return {grant.batch_id: grant for grant in grants}


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("apart", [False, True])
async def test_rule_5_deaths_of_two_agents_at_once_are_both_accepted(
    database: Database, apart: bool, restarted: bool
) -> None:
    """§8.5, §8.9: in one batch, or each in one of two of which both agents hold chunks."""
    for number in range(ROUNDS):
        names = [await put_batch(database, lines=16, chunk_lines=2) for _ in range(2)]
        chunks = [await chunks_of(database, name) for name in names]
        agents = [Process(agent_id=f"pod-{number}-{place}") for place in range(2)]
        works = []
        for place, agent in enumerate(agents):
            mine = [item.id for of_batch in chunks for item in of_batch[place::2]]
            grants = await lease(database, agent, mine)
            batch = names[place if apart else 0]
            resident = grants[batch]
            line = await first_line(database, resident.chunk_id, batch)
            if restarted:
                agent.restart()
            works.append(agent.work(deaths=[died(agent, resident, line)], state="starting"))
        async with asyncio.timeout(60):
            settled = await asyncio.gather(*(settle(database, work) for work in works))
        for work, result in zip(works, settled, strict=True):
            assert result.deaths_accepted == (work.deaths[0].death_id,)
        for name in names:
            await assert_nothing_lost_or_doubled(database, name, 16)


@contextlib.asynccontextmanager
async def busy(database: Database, upload_id: str) -> AsyncIterator[None]:
    """While it lasts a commit of this upload waits, with its chunk's lock in hand."""
    async with database.transaction() as session:
        await session.execute(select(Upload.id).where(Upload.id == upload_id).with_for_update())
        yield


async def waiting(database: Database, transactions: int) -> None:
    """Returns when so many wait for a lock; on SQLite they do from the start."""
    await asyncio.sleep(0.05)
    statement = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    async with asyncio.timeout(60):
        while database.dialect == "postgresql":
            async with database.read() as session:
                if (await session.execute(statement)).scalar_one() >= transactions:
                    return
            await asyncio.sleep(0.02)


async def lost_and_leased_again(database: Database) -> tuple[Process, Grant, Grant]:
    """A chunk whose first holder is taken for gone, its lease, and the one of the next holder."""
    batch_id = await put_batch(database, lines=4)
    (chunk,) = await chunks_of(database, batch_id)
    lost, other = Process(agent_id="pod-0"), Process(agent_id="pod-1")
    first = (await lease(database, lost, [chunk.id]))[batch_id]
    assert await release_agent(database, lost.agent_id) == 1
    second = (await lease(database, other, [chunk.id]))[batch_id]
    return lost, first, second


async def suspects_of(database: Database) -> dict[int, tuple[str, int]]:
    async with database.read() as session:
        rows = await session.execute(select(Suspect.line, Suspect.state, Suspect.deaths))
        return {line: (state, deaths) for line, state, deaths in rows}


async def test_rule_5_a_suspect_that_a_commit_leaves_over_meanwhile_runs_alone(
    database: Database, tmp_path: Path
) -> None:
    """§8.5: the next holder drains while the first one comes back with its engine's death."""
    storage = Storage(f"file://{tmp_path}")
    lost, first, second = await lost_and_leased_again(database)
    upload_id = await upload(database, storage, second, [1, 2])
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks, busy(database, upload_id):
        committing = tasks.create_task(
            commit_lines(database, second, upload_id, [1, 2], final=False)
        )
        await waiting(database, 1)
        tasks.create_task(settle(database, lost.work(deaths=[died(lost, first, 3)])))
        await waiting(database, 2)
    assert committing.result().state == "accepted"
    left = [item for item in await chunks_of(database, first.batch_id) if item.state == "open"]
    parts = [(item.solo, [at.line for at in unpack_lines(item.line_index)]) for item in left]
    assert sorted(parts) == [(False, [4]), (True, [3])]
    await assert_nothing_lost_or_doubled(database, first.batch_id, 4)


async def test_rule_5_a_suspect_that_is_answered_meanwhile_is_none(
    database: Database, tmp_path: Path
) -> None:
    """§8.5, §8.9: its commit and the next death that names it do not wait for each other."""
    storage = Storage(f"file://{tmp_path}")
    lost, first, second = await lost_and_leased_again(database)
    async with database.transaction() as session:
        session.add(
            Suspect(batch_id=first.batch_id, line=3, state="suspect", deaths=1, updated_at=1.0)
        )
    upload_id = await upload(database, storage, second, [1, 2, 3, 4])
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks, busy(database, upload_id):
        committing = tasks.create_task(
            commit_lines(database, second, upload_id, [1, 2, 3, 4], final=True)
        )
        await waiting(database, 1)
        tasks.create_task(settle(database, lost.work(deaths=[died(lost, first, 3)])))
        await waiting(database, 2)
    assert committing.result().state == "accepted"
    assert await suspects_of(database) == {3: ("cleared", 1)}


@pytest.mark.parametrize("after_grace", [False, True])
async def test_rule_4_a_death_does_not_keep_batches_from_ending(
    database: Database, after_grace: bool
) -> None:
    """§8.4, §8.9: the engine had lines of two batches that were cancelled meanwhile."""
    for number in range(ROUNDS):
        names = [await put_batch(database, lines=64, chunk_lines=2) for _ in range(2)]
        agent = Process(agent_id=f"pod-{number}")
        wanted = [(await chunks_of(database, name))[0].id for name in names]
        grants = await lease(database, agent, wanted)
        resident = [
            (grant.chunk_id, grant.attempt, await first_line(database, grant.chunk_id, name))
            for name, grant in grants.items()
        ]
        async with database.transaction() as session:
            await session.execute(
                update(Batch)
                .where(Batch.id.in_(names))
                .values(
                    status="cancelling",
                    closing_as="cancelled",
                    cancelling_at=db_now() - (31 if after_grace else 1),
                )
            )
        death = ReportedDeath(death_id="death", kind="crash", solo=False, resident=tuple(resident))
        async with asyncio.timeout(60):
            _, ended = await asyncio.gather(
                settle(database, agent.work(held=list(grants.values()), deaths=[death])),
                close_ending(database),
            )
        assert ended == (sorted(names) if after_grace else [])
