"""Waiting for an event, up to a time."""

import asyncio
import contextlib


async def wait_up_to(event: asyncio.Event, seconds: float) -> None:
    """Returns when the event is set, or after ``seconds``.

    A cancellation always ends the caller. ``asyncio.wait_for`` of Python 3.11 drops one that comes
    together with the event, and a loop over it would never end.

    Raises:
        CancelledError: the caller was cancelled.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
