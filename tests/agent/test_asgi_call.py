"""A call of the engine's own application that its caller gives up."""

from __future__ import annotations

import asyncio

import pytest

from weir_agent.asgi_call import Receive, Scope, Send, post


async def test_a_call_that_is_cancelled_again_does_not_leave_the_application_running() -> None:
    """It heeds no client that is gone: a chunk that is lost cancels what was being cancelled."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def deaf(_scope: Scope, _receive: Receive, _send: Send) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    call = asyncio.create_task(post(deaf, "/v1/completions", body=b"{}", headers={}))
    await began.wait()
    for _ in range(2):
        call.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(1):
        await ended.wait()
