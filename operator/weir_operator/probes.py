"""/healthz, /readyz and /metrics over HTTP, in the main loop: a stuck loop fails its probe."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Probe = Callable[[], str | None]
"""The reason why not, or None when all is well."""


class ProbeServer:
    """Serves the probes until it is closed."""

    def __init__(self, *, registry: CollectorRegistry, unhealthy: Probe, unready: Probe) -> None:
        self._registry = registry
        app = web.Application()
        app.router.add_get("/healthz", self._probe(unhealthy))
        app.router.add_get("/readyz", self._probe(unready))
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, host: str, port: int) -> int:
        """Starts listening; the port.

        Raises:
            OSError: the address cannot be listened on.
        """
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, shutdown_timeout=0.5)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stops listening."""
        await self._runner.cleanup()

    @staticmethod
    def _probe(reason: Probe) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            why = reason()
            return web.Response(status=200 if why is None else 503, text=f"{why or 'ok'}\n")

        return answer

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )
