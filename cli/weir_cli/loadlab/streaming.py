"""A lean HTTP/1.1 client for streamed completions: one connection a request, no dependencies.

The time of each token is taken as its bytes arrive, before anything is parsed. It speaks to servers
on the same machine only: no TLS, no redirects.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from typing_extensions import override

from weir_cli.loadlab.records import TokenEvent

_EVENT_END = b"\n\n"
_DATA = b"data: "
_DONE = b"data: [DONE]"

Observer: TypeAlias = Callable[[float, int], None]
"""Told, while an answer streams, when events arrived and how many tokens; 0 when it is over."""


class HttpError(Exception):
    """The answer was no 200, or the connection ended early (then ``status`` is 0)."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}: {body[:300].decode(errors='replace')}")
        self.status = status
        self.body = body


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A whole answer: status, body, and when each piece of the body arrived."""

    status: int
    body: bytes
    pieces: tuple[tuple[float, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """The tokens of one streamed completion, and how much of its prompt was in the cache."""

    events: tuple[TokenEvent, ...]
    text: str
    cached_tokens: int | None = None


class _Exchange(asyncio.Protocol):
    """Sends one request and collects the answer until the server closes the connection."""

    def __init__(
        self, request: bytes, done: asyncio.Future[None], observe: Observer | None
    ) -> None:
        self.arrivals: list[tuple[float, bytes]] = []
        self._request = request
        self._done = done
        self._observe = observe

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.WriteTransport):
            transport.write(self._request)

    @override
    def data_received(self, data: bytes) -> None:
        now_s = time.monotonic()
        self.arrivals.append((now_s, data))
        if self._observe is not None:
            tokens = data.count(_DATA) - data.count(_DONE)
            if tokens:
                self._observe(now_s, tokens)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)


async def exchange(
    host: str,
    port: int,
    method: str,
    path: str,
    payload: dict[str, Any] | None = None,
    *,
    observe: Observer | None = None,
) -> Answer:
    """One request on a connection of its own; the answer is parsed when it is whole.

    Cancelling it closes the connection, which makes the server abort the request.

    Raises:
        HttpError: the connection ended before an answer's head.
        OSError: no connection.
    """
    body = b"" if payload is None else json.dumps(payload).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    transport, protocol = await loop.create_connection(
        lambda: _Exchange(head.encode() + body, done, observe), host, port
    )
    try:
        await done
    finally:
        transport.abort() if not done.done() else transport.close()
    return parse_answer(protocol.arrivals)


async def stream_completion(
    host: str, port: int, payload: dict[str, Any], *, observe: Observer | None = None
) -> Completion:
    """Sends a streaming completion and returns when it has ended.

    ``payload`` gets ``stream`` and ``return_token_ids``, by which the tokens of each event are
    counted.

    Raises:
        HttpError: an answer other than 200, or a stream that broke off.
    """
    answer = await exchange(
        host,
        port,
        "POST",
        "/v1/completions",
        payload | {"stream": True, "return_token_ids": True},
        observe=observe,
    )
    if answer.status != 200:
        raise HttpError(answer.status, answer.body)
    return parse_stream(answer)


def parse_answer(arrivals: list[tuple[float, bytes]]) -> Answer:
    """Head and de-chunked body; each piece of the body keeps its time of arrival.

    Raises:
        HttpError: there is no whole head.
    """
    raw = b"".join(data for _, data in arrivals)
    head_end = raw.find(b"\r\n\r\n")
    if head_end < 0:
        raise HttpError(0, raw)
    head = raw[:head_end].lower()
    status = int(head.split(b" ", 2)[1])
    start = head_end + 4
    if b"transfer-encoding: chunked" not in head:
        return Answer(
            status=status, body=raw[start:], pieces=((arrivals[-1][0], len(raw) - start),)
        )
    return _dechunk(raw, start, arrivals, status)


def _dechunk(raw: bytes, start: int, arrivals: list[tuple[float, bytes]], status: int) -> Answer:
    ends: list[tuple[int, float]] = []
    total = 0
    for at_s, data in arrivals:
        total += len(data)
        ends.append((total, at_s))
    body: list[bytes] = []
    pieces: list[tuple[float, int]] = []
    position, arrival = start, 0
    while (line_end := raw.find(b"\r\n", position)) >= 0:
        size = int(raw[position:line_end].split(b";")[0] or b"0", 16)
        chunk_start = line_end + 2
        if size == 0 or chunk_start + size > len(raw):
            break
        while ends[arrival][0] < chunk_start + size:
            arrival += 1
        body.append(raw[chunk_start : chunk_start + size])
        pieces.append((ends[arrival][1], size))
        position = chunk_start + size + 2
    return Answer(status=status, body=b"".join(body), pieces=tuple(pieces))


def parse_stream(answer: Answer) -> Completion:
    """Tokens and text of a server-sent event stream of completion chunks.

    Raises:
        HttpError: an error event, or no ``[DONE]`` at the end.
    """
    events: list[TokenEvent] = []
    text: list[str] = []
    cached: int | None = None
    ended = False
    for at_s, data in _events(answer):
        if data == b"[DONE]":
            ended = True
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            raise HttpError(int(chunk["error"].get("code") or 500), data)
        details = (chunk.get("usage") or {}).get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens", cached)
        for choice in chunk.get("choices", ()):
            text.append(choice.get("text") or "")
            tokens = len(choice.get("token_ids") or ())
            if tokens:
                events.append(TokenEvent(at_s=at_s, count=tokens))
    if not ended:
        raise HttpError(0, b"the stream broke off: " + answer.body[-200:])
    return Completion(events=tuple(events), text="".join(text), cached_tokens=cached)


def _events(answer: Answer) -> list[tuple[float, bytes]]:
    """Each event's data with the time at which its last byte arrived."""
    found: list[tuple[float, bytes]] = []
    pieces = iter(answer.pieces)
    at_s, have = next(pieces, (0.0, 0))
    position = 0
    while (end := answer.body.find(_EVENT_END, position)) >= 0:
        while have < end + len(_EVENT_END):
            at_s, size = next(pieces)
            have += size
        data = answer.body[position:end].strip()
        if data.startswith(_DATA):
            found.append((at_s, data[len(_DATA) :]))
        position = end + len(_EVENT_END)
    return found
