"""What stands before the engine's application: Weir's own routes and the online endpoint's key.

Everything else passes through untouched.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry

from weir_agent.asgi_call import AsgiApp, Receive, Scope, Send
from weir_agent.metrics_page import metrics_page

Probe = Callable[[], str | None]
OPEN_PATHS = frozenset({"/health", "/ping"})  # the engine's probes; `WeirRoutes` has Weir's own


class WeirRoutes:
    """An ASGI layer with /healthz, /readyz and /metrics.

    ``unhealthy`` and ``unready`` return the reason, or None when all is well.
    """

    def __init__(
        self, app: AsgiApp, *, registry: CollectorRegistry, unhealthy: Probe, unready: Probe
    ) -> None:
        self._app = app
        self._registry = registry
        self._unhealthy = unhealthy
        self._unready = unready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        path = scope.get("path") if scope["type"] == "http" else None
        if path == "/healthz":
            await _answer_probe(send, self._unhealthy())
        elif path == "/readyz":
            await _answer_probe(send, self._unready())
        elif path == "/metrics":
            # The engine's metrics live in the process's default registry.
            content = await metrics_page((self._registry, REGISTRY), scope.get("query_string", b""))
            await _answer(send, 200, CONTENT_TYPE_LATEST, content)
        else:
            await self._app(scope, receive, send)


class KeyGuard:
    """An ASGI layer that asks for one of ``keys``, on every path but `OPEN_PATHS`.

    Engines guard some of their paths themselves, and answer elsewhere without a key.
    """

    def __init__(self, app: AsgiApp, *, keys: Iterable[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; 401 without a key. Browsers send preflights (OPTIONS) without one."""
        if (
            scope["type"] != "http"
            or scope["method"] == "OPTIONS"
            or scope["path"] in OPEN_PATHS
            or self._has_key(scope)
        ):
            await self._app(scope, receive, send)
        else:
            await _answer(send, 401, "application/json", b'{"error":"Unauthorized"}')

    def _has_key(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, key = given.decode("latin-1").partition(" ")
        digest = hashlib.sha256(key.encode()).digest()
        # Of every key, whichever matches: how long it takes tells nothing.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return kind.lower() == "bearer" and any(matches)


async def _answer_probe(send: Send, reason: str | None) -> None:
    status, text = (200, "ok") if reason is None else (503, reason)
    await _answer(send, status, "text/plain; charset=utf-8", f"{text}\n".encode())


async def _answer(send: Send, status: int, content_type: str, content: bytes) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(content)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
