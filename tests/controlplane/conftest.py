"""Databases for control-plane tests: every test that asks for `database_url` runs on both."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import fsspec
import httpx
import openai
import pytest
import pytest_asyncio

from tests.controlplane.jobs import Lab, lab
from tests.controlplane.support import Plane, make_settings, openai_client, running
from tests.support import sqlite
from tests.support.postgres import PostgresServer
from tests.support.processes import free_port, stop
from tests.support.statements import share_compiled
from weir_controlplane.app import make_services
from weir_controlplane.services import Services
from weir_controlplane.store.database import Database

S3_START_S = 240


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without rows, once SQLite and once a real PostgreSQL."""
    if request.param == "sqlite":
        sqlite.provide(tmp_path / "weir.db")
        yield f"sqlite+aiosqlite:///{tmp_path / 'weir.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.create_database(template=server.template("weir_migrated", sqlite.migrate))
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An open, migrated, empty database."""
    database = Database(database_url)
    share_compiled(database.engine)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def services(tmp_path: Path, database_url: str) -> AsyncIterator[Services]:
    """One replica without its loops, on either database; its chunks have some seven lines."""
    settings = make_settings(tmp_path, database_url, chunk_lines=7, abandoned_upload_s=60)
    services = make_services(settings)
    await services.database.open()
    yield services
    await services.database.close()


@pytest.fixture
async def client(plane: Plane) -> AsyncIterator[openai.AsyncOpenAI]:
    """The unmodified client of a tenant of the module's own `plane`."""
    key = await plane.tenant_key("acme")
    async with openai_client(plane, key) as client:
        yield client


@pytest.fixture
async def raw(plane: Plane, client: openai.AsyncOpenAI) -> AsyncIterator[httpx.AsyncClient]:
    """The same tenant without the client's help."""
    async with plane.client(client.api_key) as raw:
        yield raw


@pytest.fixture
async def desk(tmp_path: Path, database_url: str) -> AsyncIterator[Lab]:
    """A control plane with chunks of eight lines, and agents for it."""
    async with (
        running(make_settings(tmp_path, database_url, chunk_lines=8)) as plane,
        lab(plane) as desk,
    ):
        yield desk


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def standing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Plane]:
    """One control plane for a module's requests that are refused and leave nothing behind.

    Tests that use it run in the module's event loop: ``pytest.mark.asyncio(loop_scope="module")``.
    """
    folder = tmp_path_factory.mktemp("standing")
    async with running(make_settings(folder, poll_s=1, sweep_s=3600)) as plane:
        yield plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tenant(standing: Plane) -> AsyncIterator[httpx.AsyncClient]:
    """A tenant of the standing control plane."""
    async with standing.client(await standing.tenant_key("acme")) as client:
        yield client


@pytest.fixture
def s3_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 server in a process of its own.

    It is made of Flask, whose context objects raise when vLLM looks at every loaded module.
    """
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make_bucket(f"{address}/weir")
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield "s3://weir/files"
        fsspec.get_filesystem_class("s3").clear_instance_cache()
    finally:
        stop(server)


def _make_bucket(url: str) -> None:
    deadline = time.monotonic() + S3_START_S
    while True:
        try:
            httpx.put(url).raise_for_status()
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
