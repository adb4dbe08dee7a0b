"""A database that goes away and comes back (design.md §7 faults, §8.11)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import openai
import pytest
from sqlalchemy import delete
from sqlalchemy.exc import DBAPIError

from tests.controlplane.support import eventually, make_settings, running
from tests.support.postgres import PostgresServer
from weir_controlplane import levels as levels_module
from weir_controlplane.dispatch.watch import expire_leases, may_expire
from weir_controlplane.store import database as database_module
from weir_controlplane.store.database import Database
from weir_controlplane.store.models import ApiKey

LEVELS = {"weir_batches{", "weir_batches_stuck{", "weir_chunks{", "weir_agents{"}
UP = "\nweir_controlplane_database_up"


@pytest.mark.postgres
async def test_while_postgres_restarts_clients_are_told_to_come_back(tmp_path: Path) -> None:
    server = PostgresServer()
    try:
        url = server.url(server.create_database())
        async with running(make_settings(tmp_path, url)) as plane:
            key = await plane.tenant_key("acme")
            async with (
                plane.client(key) as raw,
                openai.AsyncOpenAI(base_url=f"{plane.url}/v1", api_key=key) as client,
            ):
                file = await client.files.create(file=b"x", purpose="batch")
                server.kill()
                for path, method in (("/v1/files", "GET"), ("/v1/batches", "GET")):
                    answer = await raw.request(method, path)
                    assert answer.status_code == 503
                    assert 0 < int(answer.headers["Retry-After"]) <= 60
                    assert answer.json()["error"]["type"] == "overloaded_error"
                refused = await raw.post(
                    "/v1/files", data={"purpose": "batch"}, files={"file": ("a", b"x")}
                )
                assert refused.status_code == 503
                assert (await raw.get("/readyz")).status_code == 503
                assert (await raw.get("/healthz")).status_code == 200
                assert f"{UP} 0.0" in (await raw.get("/metrics")).text
                server.start()

                async def back() -> bool:
                    try:
                        return (await raw.get("/readyz")).status_code == 200
                    except httpx.HTTPError:
                        return False

                await eventually(back)
                assert f"{UP} 1.0" in (await raw.get("/metrics")).text
                assert [item.id async for item in client.files.list()] == [file.id]
    finally:
        server.close()


@pytest.mark.postgres
async def test_gauges_that_are_out_of_date_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joined by max with other replicas' they would hold up batches that have long ended."""
    server = PostgresServer()
    try:
        url = server.url(server.create_database())
        async with running(make_settings(tmp_path, url)) as plane, plane.client("x") as raw:

            async def shown() -> set[str]:
                page = (await raw.get("/metrics")).text
                return {name for name in LEVELS if f"\n{name}" in page}

            async def all_shown() -> bool:
                return await shown() == LEVELS

            async def none_shown() -> bool:
                return not await shown()

            await eventually(all_shown)
            server.kill()
            assert await shown() == LEVELS  # a short outage leaves no gap
            monkeypatch.setattr(levels_module, "STALE_AFTER_S", 0.5)
            await eventually(none_shown)
            page = (await raw.get("/metrics")).text
            assert f"{UP} 0.0" in page
            assert "\nweir_controlplane_requests_in_flight" in page
            server.start()
            monkeypatch.setattr(levels_module, "STALE_AFTER_S", 120.0)
            await eventually(all_shown)
    finally:
        server.close()


@pytest.mark.postgres
async def test_what_a_replica_held_that_vanished_in_a_transaction_is_soon_free(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host lost power: the server heard of it after two hours, when its own patience ended."""
    monkeypatch.setattr(database_module, "IDLE_IN_TRANSACTION_S", 1.0)
    vanished, other = Database(postgres_url), Database(postgres_url)
    await vanished.open()
    await other.open()
    locked, seen_again = asyncio.Event(), asyncio.Event()

    async def vanish() -> None:
        async with vanished.transaction() as session:
            assert await may_expire(session)
            locked.set()
            await seen_again.wait()
            await session.execute(delete(ApiKey))

    hanging = asyncio.create_task(vanish())
    try:
        await locked.wait()
        async with asyncio.timeout(20):
            assert await expire_leases(other) == 0
        seen_again.set()
        with pytest.raises(DBAPIError) as ended:  # what comes back has written nothing
            await hanging
        assert database_module.is_outage(ended.value)
        assert await vanished.now_s() > 0
    finally:
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        await vanished.close()
        await other.close()


@pytest.mark.postgres
async def test_a_start_waits_for_a_server_that_starts_later() -> None:
    server = PostgresServer()
    try:
        database = Database(server.url(server.create_database()))
        server.kill()
        with pytest.raises(ConnectionError, match="database_url: cannot be reached"):
            await database.open()
        opening = asyncio.create_task(database.open(wait_s=120))
        await asyncio.sleep(0)
        server.start()
        await opening
        assert await database.now_s() > 0
        await database.close()
    finally:
        server.close()


@pytest.mark.postgres
async def test_a_connection_that_broke_while_it_was_idle_is_replaced_unseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database_module, "_FRESH_S", 0.0)
    server = PostgresServer()
    try:
        database = Database(server.url(server.create_database()))
        await database.open()
        before_s = await database.now_s()
        server.kill()
        server.start()
        assert await database.now_s() >= before_s
        await database.close()
    finally:
        server.close()


@pytest.mark.postgres
async def test_a_database_that_may_be_written_to_again_is_written_to() -> None:
    """Connections of a time in which it was read-only stayed so until the process was restarted."""
    server = PostgresServer()
    try:
        name = server.create_database()
        database = Database(server.url(name), pool_connections=1)
        await database.open()
        await database.engine.dispose()
        server.psql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        for _ in range(2):
            with pytest.raises(DBAPIError, match="read-only"):
                await forget_keys(database)
        assert await database.now_s() > 0
        server.psql(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        # The connection that has only read since then is found to be read-only once more.
        with pytest.raises(DBAPIError, match="read-only"):
            await forget_keys(database)
        await forget_keys(database)
        await database.close()
    finally:
        server.close()


@pytest.mark.postgres
async def test_a_read_only_database_is_as_good_as_none(tmp_path: Path) -> None:
    """Nothing could be done, and replicas stayed ready; one that started ended with SQL."""
    server = PostgresServer()
    try:
        name = server.create_database()
        settings = make_settings(tmp_path, server.url(name))
        async with running(settings) as plane, plane.client("x") as raw:

            async def read_only() -> bool:
                answer = await raw.get("/readyz")
                return answer.status_code == 503 and answer.json()["database"] == "read-only"

            async def usable() -> bool:
                is_ready = (await raw.get("/readyz")).status_code == 200
                return is_ready and f"{UP} 1.0" in (await raw.get("/metrics")).text

            assert await usable()
            server.psql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            await plane.services.database.engine.dispose()
            await eventually(read_only)
            assert f"{UP} 0.0" in (await raw.get("/metrics")).text
            other = Database(server.url(name))
            with pytest.raises(ConnectionError, match="database_url: is read-only"):
                await other.open()
            opening = asyncio.create_task(other.open(wait_s=120))
            await asyncio.sleep(0)
            server.psql(f"ALTER DATABASE {name} RESET default_transaction_read_only")
            await opening
            await other.close()
            await eventually(usable)
    finally:
        server.close()


async def forget_keys(database: Database) -> None:
    async with database.transaction() as session:
        await session.execute(delete(ApiKey))
