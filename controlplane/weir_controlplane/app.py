"""The application factory: components in, an ASGI application out.

Opens the collaborators at start, runs the components' background tasks, and closes everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence

import structlog
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from weir_controlplane.errors import WeirError
from weir_controlplane.eta.outlook import Outlook
from weir_controlplane.files.storage import Storage
from weir_controlplane.health import router as health_router
from weir_controlplane.http import install_errors
from weir_controlplane.ids import new_nonce
from weir_controlplane.keys.authenticator import Authenticator
from weir_controlplane.keys.service_accounts import PodDirectory, ServiceAccounts
from weir_controlplane.keys.token_review import TokenReviewer
from weir_controlplane.limits import install_limits
from weir_controlplane.links.signer import LinkSigner
from weir_controlplane.room import Room
from weir_controlplane.services import BackgroundTask, Component, LocalNudge, Nudge, Services
from weir_controlplane.settings import Settings
from weir_controlplane.store.database import Database, is_outage

RESTART_AFTER_S = 1.0
CANCEL_AGAIN_S = 0.5
UPLOAD_RETRY_S = 10
_log = structlog.get_logger(__name__)


def make_services(settings: Settings, *, nudge: Nudge | None = None) -> Services:
    """The collaborators of one replica, not opened yet."""
    pods = PodDirectory()
    return Services(
        settings=settings,
        database=Database(settings.database, pool_connections=settings.database_pool_connections),
        storage=Storage(settings.files),
        nudge=nudge or LocalNudge(),
        keys=Authenticator(),
        metrics=CollectorRegistry(),
        upload_room=Room(
            settings.max_concurrent_uploads, of="uploads", retry_after_s=UPLOAD_RETRY_S
        ),
        replica=f"{socket.gethostname()}/{new_nonce()}",
        links=LinkSigner(life_s=settings.link_life_s, base_url=settings.public_url or ""),
        outlook=Outlook(),
        pods=pods,
        accounts=_accounts(settings, pods),
    )


def _accounts(settings: Settings, pods: PodDirectory) -> ServiceAccounts | None:
    if settings.kubernetes_api_url is None:
        return None
    reviewer = TokenReviewer(
        api_url=settings.kubernetes_api_url,
        ca_file=settings.kubernetes_ca_file,
        token_file=settings.kubernetes_token_file,
        audience=settings.token_audience,
    )
    return ServiceAccounts(reviewer, pods, operator=settings.operator_service_account)


def create_app(services: Services, components: Sequence[Component]) -> FastAPI:
    """An application of these components; its lifespan opens and closes ``services``."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await services.database.open(wait_s=services.settings.database_wait_s)
        try:
            await services.storage.open()
            async with _running(services, components):
                yield
        finally:
            if services.accounts is not None:
                await services.accounts.close()
            await services.database.close()

    app = FastAPI(title="Weir control plane", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.services = services
    app.include_router(health_router)
    install_limits(app, services)
    install_errors(app)
    for component in components:
        for router in component.routers:
            app.router.routes.extend(router.routes)  # include_router would make each again
    return app


@contextlib.asynccontextmanager
async def _running(services: Services, components: Sequence[Component]) -> AsyncIterator[None]:
    for component in components:
        for prepare in component.startup:
            await prepare(services)
    tasks = [
        asyncio.create_task(_forever(services, component.name, task))
        for component in components
        for task in component.background
    ]
    try:
        yield
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    pending = set(tasks)
    while pending:
        # Again and again: libraries below have lost a cancellation that met a result.
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)


async def _forever(services: Services, name: str, task: BackgroundTask) -> None:
    while True:
        try:
            await task(services)
        except Exception as error:  # noqa: BLE001 - the main loop of a background task
            if isinstance(error, WeirError) or is_outage(error):  # no defect of the task itself
                _log.warning("background_task_waits", component=name, error=repr(error))
            else:
                _log.exception("background_task_failed", component=name, error=type(error).__name__)
        await asyncio.sleep(RESTART_AFTER_S)
