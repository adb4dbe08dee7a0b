"""A control plane for tests: an application on a database, and clients with keys for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
from fastapi import FastAPI
from openai.types import Batch as ClientBatch
from pydantic import SecretStr

from tests.support import sqlite
from tests.support.serving import serve
from tests.support.statements import share_compiled
from weir_controlplane.app import create_app, make_services
from weir_controlplane.heads import BoundedHeads
from weir_controlplane.main import default_components
from weir_controlplane.services import Component, Services
from weir_controlplane.settings import Settings

ENDED = {"completed", "failed", "expired", "cancelled"}
_TLS = ssl.create_default_context()  # to make one takes longer than a request


def make_settings(folder: Path, database_url: str | None = None, **given: object) -> Settings:
    """Settings of a replica that keeps everything under ``folder``, its database made already."""
    if database_url is None:
        sqlite.provide(folder / "weir.db")
    defaults: dict[str, object] = {
        "data_dir": folder,
        "database_url": None if database_url is None else SecretStr(database_url),
        "models": ("tiny",),
        "poll_s": 0.5,
        "sweep_s": 1.0,
    }
    return Settings(**(defaults | given))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Plane:
    """A running control plane."""

    url: str
    app: FastAPI
    services: Services
    admin: httpx.AsyncClient

    async def tenant_key(self, name: str, **quotas: int) -> str:
        """The key of a new tenant."""
        made = await self.admin.post("/admin/v1/tenants", json={"name": name, **quotas})
        assert made.status_code == 201, made.text
        return await self.key(tenant=name)

    async def key(self, **body: object) -> str:
        """A new key."""
        made = await self.admin.post("/admin/v1/keys", json=body)
        assert made.status_code == 201, made.text
        return str(made.json()["key"])

    @contextlib.asynccontextmanager
    async def client(self, key: str | None) -> AsyncIterator[httpx.AsyncClient]:
        """A client that sends ``key``."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with _client(self.url, headers) as client:
            yield client


def openai_client(plane: Plane, key: str) -> openai.AsyncOpenAI:
    """The unmodified client of a tenant."""
    http = openai.DefaultAsyncHttpxClient(verify=_TLS)
    return openai.AsyncOpenAI(base_url=f"{plane.url}/v1", api_key=key, http_client=http)


def _client(url: str, headers: dict[str, str]) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=60, verify=_TLS)


@contextlib.asynccontextmanager
async def running(
    settings: Settings, components: Sequence[Component] | None = None
) -> AsyncIterator[Plane]:
    """A control plane over HTTP on an ephemeral port, until the block ends."""
    services = make_services(settings)
    share_compiled(services.database.engine)
    app = create_app(services, default_components() if components is None else components)
    async with serve(app, BoundedHeads) as url:
        key = settings.admin_key.read_text(encoding="utf-8").strip()
        headers = {"Authorization": f"Bearer {key}"}
        async with _client(url, headers) as admin:
            yield Plane(url=url, app=app, services=services, admin=admin)


async def batch_reaches(client: openai.AsyncOpenAI, batch_id: str, status: str) -> ClientBatch:
    """The batch once it has this status; fails when it ends otherwise."""
    async with asyncio.timeout(240):
        while True:
            batch = await client.batches.retrieve(batch_id)
            if batch.status == status:
                return batch
            assert batch.status not in ENDED, batch
            await asyncio.sleep(0.02)


async def eventually(
    holds: Callable[[], bool | Awaitable[bool]], *, within_s: float = 120.0
) -> None:
    """Returns once ``holds`` is true; fails after ``within_s``."""
    async with asyncio.timeout(within_s):
        for _ in itertools.count():
            answer = holds()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def hanging(file: Path) -> Iterator[None]:
    """Whoever opens this file waits until the block ends, as where a network file system hangs."""
    kept = file.rename(file.with_name("kept"))
    os.mkfifo(file)
    try:
        yield
    finally:
        wakes = os.open(file, os.O_RDWR)
        kept.replace(file)
        time.sleep(0.1)  # so that nobody waits for it any more
        os.close(wakes)


def stored_files(plane: Plane) -> list[str]:
    """The names of what is in its file store, which is a folder."""
    folder = plane.services.settings.data_dir / "files"
    return [path.name for path in folder.rglob("*") if path.is_file()]
