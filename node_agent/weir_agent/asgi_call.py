"""One request to an ASGI application in this process: no socket, no client library.

What the application is does not matter here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

CANCEL_WITHIN_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class AsgiResponse:
    """A whole response."""

    status_code: int
    body: bytes


class _Exchange:
    """The two callables of one request; ``gone`` makes the client look disconnected."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.gone = asyncio.Event()
        self.status_code = 500
        self.parts: list[bytes] = []

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status_code = message["status"]
        elif message["type"] == "http.response.body":
            self.parts.append(message.get("body", b""))


async def post(app: AsgiApp, path: str, *, body: bytes, headers: Mapping[str, str]) -> AsgiResponse:
    """The application's answer to a POST of JSON; context variables of the caller are seen by it.

    Cancelling tells the application that the client has gone and waits for it to end.

    Raises:
        CancelledError: the caller was cancelled.
        Exception: what the application raised before it answered.
    """
    exchange = _Exchange(body)
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *((name.lower().encode(), value.encode()) for name, value in headers.items()),
        ],
        "client": ("in-process", 0),
        "server": ("in-process", 0),
        "state": {},
    }
    call = asyncio.ensure_future(app(scope, exchange.receive, exchange.send))
    try:
        await asyncio.shield(call)
    except asyncio.CancelledError:
        exchange.gone.set()
        try:
            await asyncio.wait([call], timeout=CANCEL_WITHIN_S)
        finally:  # of one that is cancelled again too
            call.cancel()
        raise
    except Exception:
        if not exchange.parts:  # some frameworks answer and raise
            raise
    return AsgiResponse(status_code=exchange.status_code, body=b"".join(exchange.parts))
