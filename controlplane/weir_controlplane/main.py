"""The control plane as a process: which components it has, and how it starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import structlog
import uvicorn
import uvloop
from fastapi import FastAPI
from typing_extensions import override

from weir_controlplane.agents.component import agents_component
from weir_controlplane.app import create_app, make_services
from weir_controlplane.batches.component import batches_component
from weir_controlplane.batchjobs.component import batchjobs_component
from weir_controlplane.bindings.component import bindings_component
from weir_controlplane.errors import WeirError
from weir_controlplane.files.component import files_component
from weir_controlplane.files.threads import end_threads
from weir_controlplane.heads import BoundedHeads
from weir_controlplane.hints.component import hints_component, make_nudge
from weir_controlplane.keys.bootstrap import AdminKeyFileError
from weir_controlplane.keys.component import keys_component
from weir_controlplane.links.component import links_component
from weir_controlplane.llmservices.component import llmservices_component
from weir_controlplane.logs import configure_logs, log_loop_errors
from weir_controlplane.services import Component
from weir_controlplane.settings import Settings
from weir_controlplane.store.database import OUTAGES
from weir_controlplane.store.migrate import SchemaTooNewError
from weir_controlplane.store.process_lock import DatabaseInUseError

_START_ERRORS: tuple[type[Exception], ...] = (
    AdminKeyFileError,
    DatabaseInUseError,
    SchemaTooNewError,
    WeirError,
    *OUTAGES,
    ValueError,
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_THREADS_END_S = 2.0
_MOST_FILES = 65_535
_log = structlog.get_logger(__name__)


def default_components() -> tuple[Component, ...]:
    """The components of a control plane, in start-up order."""
    return (
        agents_component(),  # first: its routes are the busiest
        hints_component(),
        keys_component(),
        files_component(),
        batches_component(),
        bindings_component(),
        links_component(),
        batchjobs_component(),
        llmservices_component(),
    )


def default_app(settings: Settings) -> FastAPI:
    """The application that `run` serves."""
    return create_app(make_services(settings, nudge=make_nudge(settings)), default_components())


def run(settings: Settings | None = None) -> None:
    """Serves until SIGTERM or SIGINT; settings come from the environment unless given.

    Raises:
        SystemExit: it could not start; the log says why in one line.
    """
    settings = settings or Settings()
    configure_logs(settings.log_level)
    _allow_many_files()
    threads = ThreadPoolExecutor(thread_name_prefix="any")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, threads))
            _leave_hung_threads(threads)
    except asyncio.CancelledError:
        _log.info("control_plane_stopped", reason="told to before it served")
    except _START_ERRORS as error:
        _log.error("control_plane_stopped", error=f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None
    except SystemExit:  # uvicorn's, which has said what the address lacks
        where = f"{settings.host}:{settings.port}"
        _log.error(
            "control_plane_stopped",
            error=f"host, port: {where} cannot be listened on (set WEIR_HOST, WEIR_PORT)",
        )
        raise SystemExit(1) from None


def _allow_many_files() -> None:
    """Raises the soft limit on open files: a connection is one, and containers start with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _leave_hung_threads(threads: ThreadPoolExecutor) -> None:
    """Ends the process where a thread does not, as one that waits for a file store that hangs.

    All that must be kept is by now, and Python would wait for its threads for ever.
    """
    if not end_threads(threads, within_s=_THREADS_END_S):
        _log.warning("threads_abandoned", within_s=_THREADS_END_S)
        sys.stdout.flush()
        os._exit(0)


async def _serve(settings: Settings, threads: ThreadPoolExecutor) -> None:
    asyncio.get_running_loop().set_default_executor(threads)
    loop, start = asyncio.get_running_loop(), asyncio.current_task()
    if start is not None:  # it is waiting for a database, maybe; process 1 has no default handlers
        for number in _SIGNALS:
            loop.add_signal_handler(number, start.cancel)
    log_loop_errors(loop)
    app = default_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=BoundedHeads,
        log_config=None,  # as ours
        log_level=settings.log_level,
        access_log=False,
        lifespan="off",  # entered here, so that what stops it is not a stack trace in a log
        timeout_keep_alive=75,  # agents call every second, under load every 15
        timeout_graceful_shutdown=int(settings.shutdown_grace_s),
    )
    async with app.router.lifespan_context(app):
        # What lives as long as the process is not looked through again and again: each full
        # collection held every request up for 0.2 s.
        gc.collect()
        gc.freeze()
        await _Server(config).serve()


class _Server(uvicorn.Server):
    """Stops on SIGTERM and SIGINT by returning: uvicorn's own would end the process at once."""

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:  # in place of those that cancel the start
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
