"""The key of the online endpoint: what is asked for it, and how it is given."""

from __future__ import annotations

import httpx
import pytest

from weir_agent.asgi_call import Receive, Scope, Send
from weir_agent.http import KeyGuard


async def engine(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    ("method", "path", "given", "status"),
    [
        ("POST", "/invocations", None, 401),
        ("POST", "/tokenize", "Bearer no", 401),
        ("POST", "/tokenize", "Basic key-b", 401),
        ("POST", "/tokenize", "Bearer ", 401),
        ("POST", "/tokenize", "Bearer kéy-a", 401),
        ("GET", "/health/", None, 401),
        ("POST", "/invocations", "Bearer key-a", 200),
        ("POST", "/invocations", "bearer key-b", 200),
        ("OPTIONS", "/invocations", None, 200),
        ("GET", "/health", None, 200),
        ("GET", "/ping", None, 200),
    ],
)
async def test_every_path_but_probes_asks_for_a_key(
    method: str, path: str, given: str | None, status: int
) -> None:
    guarded = httpx.ASGITransport(KeyGuard(engine, keys=["key-a", "key-b"]))
    headers = [] if given is None else [(b"authorization", given.encode())]
    async with httpx.AsyncClient(transport=guarded, base_url="http://agent") as client:
        answer = await client.request(method, path, headers=headers)
    assert answer.status_code == status
    assert answer.text == ('{"error":"Unauthorized"}' if status == 401 else "")
