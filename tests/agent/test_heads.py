"""The online endpoint's connections: one client's head must not hold up the others."""

from __future__ import annotations

import asyncio
import contextlib

import httpx

from weir_agent.asgi_call import Receive, Scope, Send
from weir_agent.assembly import build_server
from weir_agent.settings import load_settings

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


async def test_a_head_without_end_is_refused_and_holds_up_nobody() -> None:
    server = build_server(application, load_settings())
    server.config.port = 0
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with asyncio.timeout(20):
            found = await endless(port)
            assert not found or found.endswith(b"have more than 65536 bytes")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            for _ in range(2):
                answer = await client.post("/v1/completions", content=b"x" * 300_000)
                assert answer.text == "done"
    finally:
        server.should_exit = True
        await serving
