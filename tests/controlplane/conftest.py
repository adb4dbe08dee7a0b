"""Databases for control-plane tests: every test that asks for `database_url` runs on both."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import httpx
import pytest

from tests.support.postgres import PostgresServer
from tests.support.processes import free_port
from weir_controlplane.store.database import Database

S3_START_S = 60


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without rows, once SQLite and once a real PostgreSQL."""
    if request.param == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path / 'weir.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.create_database(template=server.template("weir_migrated", _migrate))
    yield server.url(name)
    server.drop_database(name)


def _migrate(url: str) -> None:
    async def migrate() -> None:
        database = Database(url)
        await database.open()
        await database.close()

    # In a thread: this one's event loop belongs to the tests.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, migrate()).result()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An open, migrated, empty database."""
    database = Database(database_url)
    await database.open()
    yield database
    await database.close()


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
        server.terminate()
        server.wait(10)


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
