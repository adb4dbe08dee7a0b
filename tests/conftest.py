"""Fixtures for everything that needs a real server; each starts on first use only."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

import pytest

from tests.support.postgres import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.serving import ASGIApp, serve


def pytest_configure() -> None:
    # Python ends at once on SIGTERM: the servers that the tests started would stay behind.
    signal.signal(signal.SIGTERM, lambda _number, _frame: pytest.exit("terminated", 143))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL cluster for the whole run."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL (``postgresql+asyncpg://``) of an empty database of this test's own."""
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis server for the whole run."""
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of a Redis server emptied for this test."""
    redis_server.flush()
    return redis_server.url


@pytest.fixture
def serve_app() -> Callable[[ASGIApp], AbstractAsyncContextManager[str]]:
    """``async with serve_app(app) as base_url``: an ASGI application on an ephemeral port."""
    return serve
