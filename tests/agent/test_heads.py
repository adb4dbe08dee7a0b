"""The online endpoint's connections: one client's head must not hold up the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from http.client import HTTPConnection

import httpx
import pytest

from weir_agent import heads
from weir_agent.asgi_call import Receive, Scope, Send
from weir_agent.assembly import build_server
from weir_agent.http import KeyGuard
from weir_agent.settings import load_settings

KEY = "key"
WITH_KEY = {"Authorization": f"Bearer {KEY}"}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: weir\r\nX: "


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers 200 to everything, once it has read it."""
    while scope["type"] == "lifespan":
        kind = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{kind}.complete"})
        if kind == "shutdown":
            return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


async def endless(port: int) -> bytes:
    """What the server says to a head that goes on for 40 MB."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD)
    with contextlib.suppress(ConnectionError):
        for _ in range(4_000):
            writer.write(b"y" * 10_000)
            await writer.drain()
    found = b""
    with contextlib.suppress(ConnectionError):
        found = await reader.read()
    writer.close()
    return found


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[int]:
    """The port of the application behind its key."""
    server = build_server(KeyGuard(application, keys=[KEY]), load_settings())
    server.config.port = 0
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def test_a_head_without_end_is_refused_and_holds_up_nobody() -> None:
    async with served() as port:
        async with asyncio.timeout(20):
            found = await endless(port)
            assert not found or found.endswith(b"have more than 65536 bytes")
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=WITH_KEY
        ) as client:
            for _ in range(2):
                answer = await client.post("/v1/completions", content=b"x" * 300_000)
                assert answer.text == "done"


async def test_a_long_body_without_a_key_is_told_so_and_cuts_off_no_client() -> None:
    """It was taken for a head that is too long: clients saw a reset connection, and no 401."""

    def statuses(port: int) -> list[int]:
        with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=20)) as client:
            found = []
            for keys in ({}, {}, WITH_KEY):
                client.request("POST", "/v1/completions", body=b"x" * 16_000_000, headers=keys)
                answer = client.getresponse()
                answer.read()
                found.append(answer.status)
            return found

    async with served() as port:
        assert await asyncio.to_thread(statuses, port) == [401, 401, 200]


async def test_a_body_that_nobody_reads_does_not_go_on_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heads, "HEAD_WITHIN_S", 0.5)
    async with served() as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: weir\r\nContent-Length: 999999999\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        with contextlib.suppress(ConnectionError):
            while True:  # until it is cut off
                writer.write(b"x" * 1_000)
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
