"""Weir's own routes in front of the engine's application: /healthz, /readyz, /metrics.

Everything else passes through untouched.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

from weir_agent.asgi_call import AsgiApp, Receive, Scope, Send

Probe = Callable[[], str | None]


class WeirRoutes:
    """An ASGI layer; ``unhealthy`` and ``unready`` return the reason, or None when all is well."""

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
            content = generate_latest(self._registry) + generate_latest(REGISTRY)
            await _answer(send, 200, CONTENT_TYPE_LATEST, content)
        else:
            await self._app(scope, receive, send)


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
