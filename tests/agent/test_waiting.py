"""Waiting for an event, up to a time."""

import asyncio

import pytest

from weir_agent.waiting import wait_up_to


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_that_comes_with_the_event_ends_the_loop(turns: int) -> None:
    event = asyncio.Event()

    async def loop() -> None:
        while True:
            await wait_up_to(event, 60.0)
            event.clear()

    task = asyncio.create_task(loop())
    await asyncio.sleep(0.01)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=50.0)
    assert task in done
    assert task.cancelled()


async def test_it_returns_after_the_time_although_nothing_happens() -> None:
    event = asyncio.Event()
    await asyncio.wait_for(wait_up_to(event, 0.01), 50.0)
    assert not event.is_set()
