"""The application: it ends when asked, whatever its background tasks do."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.controlplane.support import eventually, make_settings, running
from weir_controlplane.keys.component import keys_component
from weir_controlplane.services import Component, LocalNudge, Services


async def test_a_task_that_loses_a_cancellation_does_not_hold_up_the_end(tmp_path: Path) -> None:
    lost = 0

    async def deaf(_services: Services) -> None:
        nonlocal lost
        while lost < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
        await asyncio.Event().wait()

    async with (
        running(
            make_settings(tmp_path), [keys_component(), Component(name="deaf", background=(deaf,))]
        ) as plane,
        plane.client(None) as client,
    ):
        assert (await client.get("/healthz")).status_code == 200
    assert lost == 2


async def test_a_task_that_fails_is_started_again(tmp_path: Path) -> None:
    starts = 0

    async def failing(_services: Services) -> None:
        nonlocal starts
        starts += 1
        raise RuntimeError("no")

    part = Component(name="failing", background=(failing,))
    async with running(make_settings(tmp_path), [keys_component(), part]):
        await eventually(lambda: starts >= 2)
    assert starts >= 2


async def test_a_hint_wakes_and_a_lost_one_costs_the_timeout_only() -> None:
    """§8.13."""
    nudge = LocalNudge()
    waiting = asyncio.create_task(nudge.wait("t", 60))
    await asyncio.sleep(0)
    await nudge.send("t")
    async with asyncio.timeout(50):  # less than the wait that the hint ends
        await waiting
        await nudge.wait("t", 0.01)
    assert waiting.done()
