"""An ASGI application on an ephemeral loopback port, inside the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
from typing_extensions import override

ASGIApp = Callable[..., Any]
START_WITHIN_S = 240.0


class _Server(uvicorn.Server):
    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:  # signals belong to pytest
        yield


def _prepare(
    app: ASGIApp, protocol: type[asyncio.Protocol] | str = "auto"
) -> tuple[_Server, socket.socket, str]:
    config = uvicorn.Config(
        app,
        http=protocol,
        log_config=None,
        ws="none",
        lifespan="on",
        timeout_keep_alive=3600,  # a loop that stood still must not close what its client reuses
        timeout_graceful_shutdown=5,
    )
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return _Server(config), bound, f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextlib.asynccontextmanager
async def serve(
    app: ASGIApp, protocol: type[asyncio.Protocol] | str = "auto"
) -> AsyncIterator[str]:
    """The base URL of ``app``, served in the running event loop until the block ends.

    ``protocol``: uvicorn's, for its connections.

    Raises:
        RuntimeError: the application's start-up failed.
    """
    server, bound, url = _prepare(app, protocol)
    task = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        async with asyncio.timeout(START_WITHIN_S):
            while not server.started:
                if task.done():
                    raise RuntimeError(f"the application did not start: {task.exception()}")
                await asyncio.sleep(0.01)
        yield url
    finally:
        server.should_exit = True
        with contextlib.suppress(SystemExit):  # uvicorn's word for a failed start-up
            await task
        bound.close()


@contextlib.contextmanager
def serve_in_thread(app: ASGIApp) -> Iterator[str]:
    """The base URL of ``app``, served in a thread with a loop of its own: for blocking clients.

    Raises:
        RuntimeError: the application's start-up failed.
    """
    server, bound, url = _prepare(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, name="test-server")
    thread.start()
    waited = threading.Event()
    try:
        for _ in range(int(START_WITHIN_S / 0.01)):
            if server.started:
                break
            if not thread.is_alive():
                raise RuntimeError("the application did not start: see the log above")
            waited.wait(0.01)
        yield url
    finally:
        server.should_exit = True
        thread.join(30)
        bound.close()
