"""The bounds that every request passes before any of it is kept, and the count of requests."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import re
import time
from collections.abc import Iterator
from typing import Literal

import structlog
from fastapi import FastAPI
from prometheus_client import Counter, Gauge, Histogram
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weir_controlplane.errors import (
    InvalidRequestError,
    OverloadedError,
    PayloadTooLargeError,
    PermissionDeniedError,
    RequestTimeoutError,
    WeirError,
)
from weir_controlplane.http import error_response
from weir_controlplane.keys.auth import authenticate, tenant_of
from weir_controlplane.repeats import ARRIVED_S
from weir_controlplane.room import Room
from weir_controlplane.services import Services
from weir_controlplane.store.database import OUTAGES

# These bodies are streamed to the file store by endpoints that have bounds of their own.
_STREAMED = re.compile(r"POST /v1/files/?|PUT /internal/v1/chunks/[^/]+/results/?")
# Of agents, on the file store: while that hangs each keeps its place, though its client is gone.
_TRANSFER = re.compile(r"(GET|PUT) /internal/v1/chunks/[^/]+/(lines|results)/?")
_Kind = Literal["tenants", "transfers", "ours"]
_ALWAYS = frozenset({"/healthz", "/readyz", "/metrics"})
_CLIENT_ERROR, _HTTP_ERROR = 400, 500
# Of agents, the operator and administrators: all others leave them a quarter of the places, and
# transfers half of that.
_OURS = ("/internal/", "/admin/")
_NOBODY = ""  # all of whom nobody can say whose they are share one tenant's part
_RETRY_AFTER_S = 2
BODY_IDLE_S = 60.0  # a client that is gone without a word must not keep its place
SEND_IDLE_S = 60.0  # nor one that reads nothing of its answer
_PIECE_BYTES = 64 << 10  # of an answer: who reads so much in that time is slow, and not gone
_DRAIN_BYTES = 16 << 20
_DRAIN_S = 5.0
_log = structlog.get_logger(__name__)


def install_limits(app: FastAPI, services: Services) -> None:
    """Adds the bounds and the request metrics to an application."""
    app.add_middleware(_Limits, services=services)


class _Limits:
    """ASGI middleware: 503 above the bound of requests at once, 413 above that of a body."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services
        self._places = services.settings.max_in_flight_requests
        self._bounds = _bounds(self._places)
        self._room = Room(self._bounds["tenants"], of="requests", retry_after_s=_RETRY_AFTER_S)
        self._in_flight: collections.Counter[_Kind] = collections.Counter()
        registry = services.metrics
        Gauge(
            "weir_controlplane_requests_in_flight", "Requests being handled.", registry=registry
        ).set_function(self._in_flight.total)
        self._count = Counter(
            "weir_controlplane_requests",
            "Requests answered, by method, route and status.",
            ("method", "route", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "weir_controlplane_request_seconds",
            "Time to the end of the answer.",
            ("method", "route"),
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _ALWAYS:
            await self._app(scope, receive, send)
            return
        scope[ARRIVED_S] = time.monotonic()  # even whose a call is may take long to be found
        streamed = _STREAMED.fullmatch(f"{scope['method']} {scope['path']}") is not None
        bound_bytes = None if streamed else self._services.settings.max_body_bytes
        body = _Body(scope, receive, bound_bytes)
        refusal = self._refusal(scope, body) or await self._admit(scope, body, send)
        if refusal is not None:  # it keeps no place while it is told so
            await _answer(refusal, scope, body, send)
            self._count.labels(scope["method"], "refused", str(refusal.status)).inc()

    async def _admit(self, scope: Scope, body: _Body, send: Send) -> WeirError | None:
        """Handles a request in a place of its own; the refusal where its tenant gets none."""
        kind = _kind(scope)
        with contextlib.ExitStack() as places:
            places.enter_context(self._counted(kind))
            if kind == "tenants":
                tenant_id = await tenant_of(Request(scope), self._services)
                try:
                    places.enter_context(self._room.place(tenant_id or _NOBODY))
                except OverloadedError as refusal:
                    return refusal
            elif body.unread:
                stranger = await self._stranger(scope)
                if stranger is not None:
                    return stranger
            await self._handle(scope, body, send)
        return None

    async def _stranger(self, scope: Scope) -> WeirError | None:
        """The refusal of who may call nothing here, before a body is waited for in vain."""
        try:
            principal = await authenticate(Request(scope), self._services)
        except WeirError as refusal:
            return refusal
        except OUTAGES:  # the endpoint meets it too, and its error is answered as any other
            return None
        if principal.scope == "tenant":
            return PermissionDeniedError("this call is not for tenants; yours has scope tenant")
        return None

    @contextlib.contextmanager
    def _counted(self, kind: _Kind) -> Iterator[None]:
        self._in_flight[kind] += 1
        try:
            yield
        finally:
            self._in_flight[kind] -= 1

    def _refusal(self, scope: Scope, body: _Body) -> WeirError | None:
        if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
            return InvalidRequestError("a NUL character is in no name, id or parameter")
        kind = _kind(scope)
        if self._in_flight.total() >= self._places or self._in_flight[kind] >= self._bounds[kind]:
            return OverloadedError("too many requests at once", retry_after_s=_RETRY_AFTER_S)
        if body.bound_bytes is not None and body.announced_bytes > body.bound_bytes:
            return body.too_large()
        return None

    async def _handle(self, scope: Scope, body: _Body, send: Send) -> None:
        started_s, status = time.monotonic(), _HTTP_ERROR
        streamed = False  # else the server has nothing to wait for

        async def watched_send(message: Message) -> None:
            nonlocal status, streamed
            if body.refusal is not None:  # whatever the application made of the broken body
                return
            if message["type"] == "http.response.start":
                status = message["status"]
                message = await _closing_if_unread(message, body)
            for piece in _pieces(message):
                streamed = streamed or piece.get("more_body", False)
                await (_sent(send, piece) if streamed else send(piece))

        try:
            await self._app(scope, body, watched_send)
            if body.refusal is not None:
                status = body.refusal.status
                await _answer(body.refusal, scope, body, send)
        except _UnreadError:
            _log.info("answer_not_read", path=scope["path"])  # the server hangs up
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            self._count.labels(scope["method"], route, str(status)).inc()
            self._seconds.labels(scope["method"], route).observe(time.monotonic() - started_s)


def _kind(scope: Scope) -> _Kind:
    if not scope["path"].startswith(_OURS):
        return "tenants"
    return "transfers" if _TRANSFER.fullmatch(f"{scope['method']} {scope['path']}") else "ours"


def _bounds(places: int) -> dict[_Kind, int]:
    """The most places of each kind: what is left when the others have all of theirs is for ours."""
    kept = places // 4
    return {"tenants": places - kept, "transfers": max(1, kept // 2), "ours": places}


class _UnreadError(ClientDisconnect):
    """The client reads nothing of its answer."""


def _pieces(message: Message) -> Iterator[Message]:
    content = message.get("body", b"")
    if len(content) <= _PIECE_BYTES:
        yield message
        return
    for start in range(0, len(content), _PIECE_BYTES):
        end = start + _PIECE_BYTES
        more = end < len(content) or message.get("more_body", False)
        yield {**message, "body": content[start:end], "more_body": more}


async def _sent(send: Send, message: Message) -> None:
    try:
        async with asyncio.timeout(SEND_IDLE_S):
            await send(message)
    except TimeoutError:
        raise _UnreadError from None


class _Body:
    """A request's body: an ASGI receive that ends in an error where it passes a bound.

    ``refusal`` is that error, for the answer: an application may have made another one of it.
    """

    def __init__(self, scope: Scope, receive: Receive, bound_bytes: int | None) -> None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        self.announced_bytes = int(length) if length.isdigit() else 0
        self.bound_bytes = bound_bytes
        self.refusal: WeirError | None = None
        self.unread = self.announced_bytes > 0 or b"transfer-encoding" in headers
        self._receive = receive
        self._received_bytes = 0

    async def __call__(self) -> Message:
        # After its body a client may be silent for as long as its answer takes.
        idle_s = BODY_IDLE_S if self.unread else None
        try:
            async with asyncio.timeout(idle_s):
                message = await self._next()
        except TimeoutError:
            self.refusal = RequestTimeoutError(
                f"nothing of the body came for {idle_s:g} s; send it again"
            )
            raise self.refusal from None
        if message["type"] == "http.disconnect" and idle_s is not None:
            self.refusal = InvalidRequestError("the body was cut off; send it again")
            raise self.refusal
        if self.bound_bytes is not None and self._received_bytes > self.bound_bytes:
            self.refusal = self.too_large()
            raise self.refusal
        return message

    async def drained(self) -> bool:
        """Throws away what is still coming, within bounds: a client that sends reads no answer.

        Whether that was all.
        """
        upto = self._received_bytes + _DRAIN_BYTES
        try:
            async with asyncio.timeout(_DRAIN_S):
                while self.unread and self._received_bytes < upto:
                    await self._next()
        except TimeoutError:
            return False
        return not self.unread

    def too_large(self) -> PayloadTooLargeError:
        """The refusal of this body."""
        return PayloadTooLargeError(f"the body is larger than {self.bound_bytes} bytes")

    async def _next(self) -> Message:
        message = await self._receive()
        self._received_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            self.unread = False
        return message


async def _answer(error: WeirError, scope: Scope, body: _Body, send: Send) -> None:
    async def closing_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = await _closing_if_unread(message, body)
        await send(message)

    await error_response(error)(scope, body, closing_send)


async def _closing_if_unread(start: Message, body: _Body) -> Message:
    if start["status"] < _CLIENT_ERROR or not body.unread:
        return start
    if await body.drained():
        return start
    # The rest of the body is not worth reading: the connection ends with the answer.
    return {**start, "headers": [*start.get("headers", []), (b"connection", b"close")]}
