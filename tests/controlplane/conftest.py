"""Databases for control-plane tests: every test that asks for `database_url` runs on both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.postgres import PostgresServer
from weir_controlplane.store.database import Database


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
