"""The servers that the other tests stand on: real, fresh for each test, gone afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg
import httpx
import pytest
import redis.asyncio

from tests.support.postgres import PostgresServer
from tests.support.processes import find_binary
from tests.support.redis_server import RedisServer
from tests.support.serving import serve_in_thread


async def hello(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """The smallest ASGI application."""
    if scope["type"] == "lifespan":
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def _tables(url: str) -> int:
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        found = await connection.fetchval("SELECT count(*) FROM pg_tables WHERE tablename = 'seen'")
        await connection.execute("CREATE TABLE seen (id int)")
        return int(found)
    finally:
        await connection.close()


@pytest.mark.postgres
@pytest.mark.parametrize("_run", [1, 2])
async def test_each_test_gets_an_empty_database(postgres_url: str, _run: int) -> None:
    assert await _tables(postgres_url) == 0


@pytest.mark.postgres
async def test_a_template_is_prepared_once_and_copied(postgres_server: PostgresServer) -> None:
    prepared: list[str] = []
    for _ in range(2):
        postgres_server.template("weir_template_test", prepared.append)
    name = postgres_server.create_database(template="weir_template_test")
    assert prepared == [postgres_server.url("weir_template_test")]
    postgres_server.drop_database(name)


@pytest.mark.postgres
async def test_a_killed_postgres_comes_back_with_its_data(postgres_server: PostgresServer) -> None:
    name = postgres_server.create_database()
    await _tables(postgres_server.url(name))
    postgres_server.kill()
    postgres_server.start()
    with pytest.raises(asyncpg.exceptions.DuplicateTableError):
        await _tables(postgres_server.url(name))


@pytest.mark.redis
@pytest.mark.parametrize("_run", [1, 2])
async def test_each_test_gets_an_empty_redis(redis_url: str, _run: int) -> None:
    async with redis.asyncio.from_url(redis_url) as client:
        assert await client.dbsize() == 0
        await client.set("seen", 1)


@pytest.mark.redis
def test_redis_is_gone_after_close() -> None:
    server = RedisServer()
    url, folder = server.url, server.folder
    server.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url.replace("redis://", "http://"))
    assert not folder.exists()


async def test_an_application_is_served_in_the_tests_own_loop(
    serve_app: Callable[..., AbstractAsyncContextManager[str]],
) -> None:
    async with (
        serve_app(hello) as base_url,
        httpx.AsyncClient(base_url=base_url, timeout=60) as client,
    ):
        assert (await client.get("/")).text == "hello"
    async with httpx.AsyncClient(base_url=base_url, timeout=60) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("/")


def test_an_application_is_served_to_blocking_clients() -> None:
    with serve_in_thread(hello) as base_url:
        assert httpx.get(base_url, timeout=60).text == "hello"


def test_a_missing_program_is_named_with_the_remedy() -> None:
    with pytest.raises(FileNotFoundError, match=r"weird-server is not installed: run `make setup`"):
        find_binary("weird-server", "usr/lib/nowhere/*/bin")
