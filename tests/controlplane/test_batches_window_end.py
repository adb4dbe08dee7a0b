"""Batches whose window ends before their lines do (design.md §8.4, §8.6)."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import ColumnElement, update

from tests.controlplane.endings import (
    ALL,
    LINES,
    batch_of,
    custom_ids,
    end_window,
    error_codes,
    lease_first,
    opened,
)
from tests.controlplane.fleet import Fleet
from tests.controlplane.test_dispatch_deaths import waiting
from weir_controlplane.batches import leases
from weir_controlplane.batches.leases import apply_due, claim
from weir_controlplane.batches.states import Event
from weir_controlplane.batches.winding_up import wind_up
from weir_controlplane.batches.worker import work_once
from weir_controlplane.dispatch import restructure
from weir_controlplane.dispatch.bounds import GRACE_S
from weir_controlplane.dispatch.watch import close_ending, expire_leases
from weir_controlplane.services import Services
from weir_controlplane.store.line_index import unpack_lines
from weir_controlplane.store.models import Chunk, Suspect


@pytest.mark.parametrize("held", [False, True], ids=["all-open", "one-leased"])
async def test_a_batch_out_of_time_expires_whoever_looks_first(
    services: Services, *, held: bool
) -> None:
    """§8.6: who watches the chunks may see the end of the window before who marks the batch."""
    await opened(services)
    chunk = await lease_first(services) if held else None
    await end_window(services, ago_s=1)
    await close_ending(services.database)
    if chunk is not None:  # its holder commits all that it has
        await Fleet(services).commit(chunk)
    while await work_once(services):
        await close_ending(services.database)
    batch = await batch_of(services)
    answered = 0 if chunk is None else chunk.lines
    assert (batch.status, batch.completed_lines) == ("expired", answered)
    assert await custom_ids(services) == ALL
    codes = await error_codes(services)
    assert len(codes) == LINES - answered
    assert set(codes.values()) == {"batch_expired"}


async def test_a_batch_whose_last_line_is_committed_while_its_window_ends_is_complete(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look for batches that are done and the one for windows that have ended."""
    batch_id = await opened(services)
    fleet = Fleet(services)
    *others, last = await fleet.chunks(batch_id)
    for chunk in others:
        await fleet.commit(chunk)
    apply = leases._apply

    async def and_meanwhile(services: Services, due: ColumnElement[bool], event: Event) -> None:
        await apply(services, due, event)
        if event is Event.LINES_DONE:
            await fleet.commit(last)
            await end_window(services, ago_s=1)

    monkeypatch.setattr(leases, "_apply", and_meanwhile)
    await apply_due(services)
    monkeypatch.undo()
    while await work_once(services):
        pass
    batch = await batch_of(services)
    assert (batch.status, batch.completed_lines, batch.error_file_id) == ("completed", LINES, None)


async def test_the_holder_of_an_expired_batchs_chunk_has_its_grace(services: Services) -> None:
    """§8.4: what is open is closed at once, what is leased 30 s after the window's end."""
    await opened(services)
    chunk = await lease_first(services)
    await end_window(services, ago_s=GRACE_S - 20)
    assert not await work_once(services)  # it waits for the holder
    await close_ending(services.database)
    states = {item.id: item.state for item in await Fleet(services).chunks("b")}
    assert states.pop(chunk.id) == "leased"
    assert set(states.values()) == {"closed"}
    await end_window(services, ago_s=GRACE_S + 1)
    assert not await work_once(services)  # nor does it take from the holder what it has
    assert await close_ending(services.database) == ["b"]
    assert await work_once(services)
    assert (await batch_of(services)).status == "expired"
    assert set((await error_codes(services)).values()) == {"batch_expired"}


async def test_a_lease_of_suspects_runs_out_while_its_batch_ends(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.9: one holds the chunk and adds to its batch, the other the batch and closes them."""
    await opened(services)
    await end_window(services, ago_s=1)
    await apply_due(services)
    work = await claim(services)
    assert work is not None
    chunk = await lease_first(services)
    line = unpack_lines(chunk.line_index)[0].line
    async with services.database.transaction() as session:
        await session.execute(update(Chunk).values(lease_until=1.0))
        session.add(Suspect(batch_id="b", line=line, state="suspect", deaths=1, updated_at=1.0))
    cutting = asyncio.Event()
    marked_lines = restructure.marked_lines

    async def slowly(*arguments: object) -> object:
        cutting.set()
        await waiting(services.database, 1)
        return await marked_lines(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(restructure, "marked_lines", slowly)
    async with asyncio.timeout(60):
        expiring = asyncio.create_task(expire_leases(services.database))
        await cutting.wait()
        await wind_up(services, work, lambda: True)
        assert await expiring == 1
    assert (await batch_of(services)).status == "expired"
    assert await custom_ids(services) == ALL
