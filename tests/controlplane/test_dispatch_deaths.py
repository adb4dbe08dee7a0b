"""Deaths of several agents at once, below HTTP, on both databases (§8.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.controlplane.bench import (
    Process,
    assert_nothing_lost_or_doubled,
    chunks_of,
    put_batch,
)
from weir_controlplane.dispatch.settle import settle
from weir_controlplane.dispatch.work import Grant, ReportedDeath
from weir_controlplane.store.database import Database
from weir_controlplane.store.line_index import unpack_lines

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
