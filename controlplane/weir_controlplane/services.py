"""What the parts of the control plane are given, and how a part joins the application.

A part is a `Component`: routers for the API and tasks that run beside it. No logic here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Protocol, cast

from fastapi import APIRouter, Depends, Request
from prometheus_client import CollectorRegistry

from weir_controlplane.eta.outlook import Outlook
from weir_controlplane.files.storage import Storage
from weir_controlplane.keys.authenticator import Authenticator
from weir_controlplane.keys.service_accounts import PodDirectory, ServiceAccounts
from weir_controlplane.links.signer import LinkSigner
from weir_controlplane.room import Room
from weir_controlplane.settings import Settings
from weir_controlplane.store.database import Database


class Nudge(Protocol):
    """A hint that there is work; losing every one of them costs `poll_s`, nothing else (§8.13)."""

    async def send(self, topic: str) -> None:
        """Wakes whoever waits for ``topic`` in any replica. Never raises."""
        ...

    async def wait(self, topic: str, timeout_s: float) -> None:
        """Returns on the next hint for ``topic``, or after ``timeout_s`` at the latest."""
        ...


class LocalNudge:
    """Hints inside one process: what embedded mode has instead of Redis."""

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}

    async def send(self, topic: str) -> None:
        """Wakes whoever waits for ``topic``."""
        self._event(topic).set()

    async def wait(self, topic: str, timeout_s: float) -> None:
        """Returns on the next hint for ``topic``, or after ``timeout_s``."""
        event = self._event(topic)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await event.wait()
                event.clear()

    def _event(self, topic: str) -> asyncio.Event:
        return self._events.setdefault(topic, asyncio.Event())


@dataclass(frozen=True, kw_only=True)
class Services:
    """The collaborators of one replica. ``replica`` names it in leases and logs.

    Parts register their Prometheus metrics in ``metrics``, which `/metrics` shows.
    """

    settings: Settings
    database: Database
    storage: Storage
    nudge: Nudge
    keys: Authenticator
    metrics: CollectorRegistry
    upload_room: Room
    replica: str
    links: LinkSigner
    outlook: Outlook
    pods: PodDirectory
    accounts: ServiceAccounts | None  # None: outside Kubernetes


BackgroundTask = Callable[[Services], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Component:
    """A part of the control plane.

    ``routers`` reach their collaborators by the `ServicesDep` parameter. ``background`` tasks are
    started when the application is, and cancelled when it stops; one that raises is logged and
    started again. Two replicas run the same tasks.
    """

    name: str
    startup: tuple[BackgroundTask, ...] = ()  # awaited, in order, before the first request
    routers: tuple[APIRouter, ...] = ()
    background: tuple[BackgroundTask, ...] = ()


async def services_of(request: Request) -> Services:
    """The services of the application that handles this request."""
    # Not a plain function: FastAPI would hand each request to a thread for it.
    return cast("Services", request.app.state.services)


ServicesDep = Annotated[Services, Depends(services_of)]
