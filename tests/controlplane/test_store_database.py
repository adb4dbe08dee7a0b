"""The database: schema, clock, transactions, and who may start on it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import (
    JSON,
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    UniqueConstraint,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from tests.support.postgres import PostgresServer
from weir_controlplane.store.database import Database, clock_s, is_refusal
from weir_controlplane.store.fleet_models import Agent
from weir_controlplane.store.kubernetes_models import BatchJob
from weir_controlplane.store.migrate import SCHEMA_LEVEL, SchemaTooNewError, alembic_config
from weir_controlplane.store.models import Base, SchemaInfo, Tenant
from weir_controlplane.store.process_lock import DatabaseInUseError


async def test_migrations_make_the_schema_of_the_models(database: Database) -> None:
    assert Agent.metadata is BatchJob.metadata is Tenant.metadata  # the tables of every module

    def differences(connection: Connection) -> list[object]:
        return list(
            compare_metadata(
                MigrationContext.configure(connection, opts={"compare_type": True}),
                BatchJob.metadata,
            )
        )

    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences) == []


def test_rows_that_refer_to_a_deleted_one_are_found_by_an_index() -> None:
    """The database looks for them at each deletion, in every table that may have some."""
    never_deleted = {"tenants"}
    unindexed = set()
    for table in Base.metadata.sorted_tables:
        ways = [list(index.columns) for index in table.indexes]
        ways += [
            list(constraint.columns)
            for constraint in table.constraints
            if isinstance(constraint, PrimaryKeyConstraint | UniqueConstraint)
        ]
        leading = {columns[0].name for columns in ways}
        unindexed |= {
            f"{table.name}.{key.parent.name}"
            for key in table.foreign_keys
            if key.column.table.name not in never_deleted and key.parent.name not in leading
        }
    assert unindexed == set()


async def test_the_schema_says_its_level(database: Database) -> None:
    async with database.read() as session:
        assert (await session.execute(select(SchemaInfo.level))).scalar_one() == SCHEMA_LEVEL


async def test_the_databases_clock_is_seconds_since_1970(database: Database) -> None:
    before = time.time()
    now_s = await database.now_s()
    assert before - 5 <= now_s <= time.time() + 5


async def test_the_clock_moves_inside_a_transaction(database: Database) -> None:
    """§8.1: a transaction that waited must not decide by an old time."""
    async with database.transaction() as session:
        first = await clock_s(session)
        await asyncio.sleep(0.02)
        assert await clock_s(session) > first


async def test_a_transaction_that_raises_leaves_nothing(database: Database) -> None:
    async def write_and_stop() -> None:
        async with database.transaction() as session:
            session.add(Tenant(id="t", name="t", created_at=0.0))
            await session.flush()
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        await write_and_stop()
    async with database.read() as session:
        assert (await session.execute(select(Tenant.id))).all() == []


async def test_writers_at_once_all_succeed(database: Database) -> None:
    async def write(number: int) -> None:
        async with database.transaction() as session:
            await session.execute(select(Tenant.id))
            await asyncio.sleep(0)
            session.add(Tenant(id=f"t{number}", name=f"n{number}", created_at=0.0))

    await asyncio.gather(*(write(number) for number in range(20)))
    async with database.read() as session:
        assert len((await session.execute(select(Tenant.id))).all()) == 20


async def test_opening_again_keeps_the_data(database_url: str) -> None:
    found = []
    for _ in range(2):
        database = Database(database_url)
        await database.open()
        async with database.transaction() as session:
            found.append(list((await session.execute(select(Tenant.name))).scalars()))
            if not found[-1]:
                session.add(Tenant(id="tenant-1", name="acme", created_at=0.0))
        await database.close()
    assert found == [[], ["acme"]]


async def test_a_release_too_old_for_the_schema_refuses_to_start(database_url: str) -> None:
    """§8.10."""
    newer = SCHEMA_LEVEL + 1
    database = Database(database_url)
    await database.open()
    async with database.transaction() as session:
        levels = update(SchemaInfo).values(level=newer + 1, oldest_compatible_level=newer)
        await session.execute(levels)
    await database.close()
    told = rf"level {newer}; this release knows level {SCHEMA_LEVEL}"
    with pytest.raises(SchemaTooNewError, match=told):
        await Database(database_url).open()


async def test_the_previous_release_works_beside_a_newer_schema(database_url: str) -> None:
    """§8.10: a newer release expanded the schema and still supports this one."""
    database = Database(database_url)
    await database.open()
    async with database.transaction() as session:
        await session.execute(text("UPDATE schema_info SET level = 99"))
        await session.execute(text("UPDATE alembic_version SET version_num = '0099'"))
    await database.close()
    again = Database(database_url)
    await again.open()
    assert await again.now_s() > 0
    await again.close()


async def test_what_the_previous_release_writes_fits_the_newer_schema(database: Database) -> None:
    """§8.10: its rows name only the columns that it knows."""
    previous = await _schema_at("0001")
    current = await _schema_of(database)
    for table, columns in previous.items():
        assert columns.keys() <= current[table].keys()
        for name, column in columns.items():
            assert column["nullable"] == current[table][name]["nullable"], (table, name)
        for name in current[table].keys() - columns.keys():
            added = current[table][name]
            assert added["nullable"] or added["default"] is not None, (table, name)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def bare_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without any table."""
    if request.param == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path / 'bare.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


@pytest.mark.parametrize("revision", ["0001", "0002", "0003", "0004", "0005", "0006"])
async def test_what_an_earlier_release_wrote_is_there_after_the_migration(
    bare_url: str, revision: str
) -> None:
    """A row in each of its tables; two replicas of this release begin at once on a server."""
    engine = create_async_engine(bare_url)
    async with engine.begin() as connection:
        await connection.run_sync(_fill, revision)
        before = await connection.run_sync(_rows)
    await engine.dispose()
    replicas = [Database(bare_url) for _ in range(2 if "postgresql" in bare_url else 1)]
    await asyncio.gather(*(replica.open() for replica in replicas))
    async with replicas[0].engine.connect() as connection:
        after = await connection.run_sync(_rows)
    for table in before.keys() - {"alembic_version", "schema_info"}:
        assert after[table].items() >= before[table].items()
    assert after["schema_info"]["level"] == SCHEMA_LEVEL
    async with replicas[0].read() as session:
        for mapper in Base.registry.mappers:
            found = (await session.execute(select(mapper.class_))).scalars().all()
            assert len(found) == (mapper.class_.__tablename__ in before), mapper
    for replica in replicas:
        await replica.close()


def _fill(connection: Connection, revision: str) -> None:
    command.upgrade(alembic_config(connection), revision)
    schema = MetaData()
    schema.reflect(connection)
    for table in schema.sorted_tables:
        if table.name not in {"alembic_version", "schema_info"}:
            row = {column.name: _value(column) for column in table.columns}
            connection.execute(table.insert().values(row))


def _value(column: Column[Any]) -> object:
    kind = column.type
    if isinstance(kind, JSON):
        return []
    return {bool: True, bytes: b"x", float: 1.5, int: 1}.get(kind.python_type, "x")


def _rows(connection: Connection) -> dict[str, dict[str, Any]]:
    schema = MetaData()
    schema.reflect(connection)
    return {
        table.name: dict(connection.execute(table.select()).mappings().one())
        for table in schema.tables.values()
        if connection.execute(table.select()).first() is not None
    }


async def _schema_of(database: Database) -> dict[str, dict[str, Any]]:
    async with database.engine.connect() as connection:
        return await connection.run_sync(_columns)


async def _schema_at(revision: str) -> dict[str, dict[str, Any]]:
    def upgrade(connection: Connection) -> dict[str, dict[str, Any]]:
        command.upgrade(alembic_config(connection), revision)
        return _columns(connection)

    engine = create_async_engine("sqlite+aiosqlite:///:memory:")
    async with engine.connect() as connection:
        found = await connection.run_sync(upgrade)
    await engine.dispose()
    return found


def _columns(connection: Connection) -> dict[str, dict[str, Any]]:
    inspector = inspect(connection)
    return {
        table: {column["name"]: dict(column) for column in inspector.get_columns(table)}
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }


@pytest.mark.postgres
async def test_replicas_that_start_at_once_migrate_once(postgres_url: str) -> None:
    """§8.10: under an advisory lock."""
    replicas = [Database(postgres_url) for _ in range(4)]
    await asyncio.gather(*(replica.open() for replica in replicas))
    for replica in replicas:
        assert await replica.now_s() > 0
        await replica.close()


@pytest.mark.postgres
@pytest.mark.parametrize(("name", "max_batches"), [("a\0", 1), ("\ud800", 1), ("a", 10**30)])
async def test_a_value_that_postgresql_does_not_take_is_no_outage(
    postgres_url: str, name: str, max_batches: int
) -> None:
    database = Database(postgres_url)
    await database.open()
    with pytest.raises(DBAPIError) as caught:
        async with database.transaction() as session:
            session.add(Tenant(id="t", name=name, created_at=0.0, max_batches=max_batches))
    assert is_refusal(caught.value)
    with pytest.raises(DBAPIError) as caught:
        async with database.transaction() as session:
            await session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    assert not is_refusal(caught.value)
    await database.close()


async def test_a_second_process_is_refused_by_name_of_the_holder(tmp_path: Path) -> None:
    """§8.9: SQLite serves one control-plane process."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'weir.db'}"
    program = (
        "import asyncio, sys\n"
        "from weir_controlplane.store.database import Database\n"
        f"database = Database({url!r})\n"
        "async def main():\n"
        "    await database.open()\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.read()\n"
        "asyncio.run(main())\n"
    )
    folder = Path(__file__).parents[2] / "controlplane"
    with subprocess.Popen(  # noqa: ASYNC220 - it only has to hold the lock
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(folder)},
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(DatabaseInUseError, match=f"process {holder.pid} on .*WEIR_DATA_DIR"):
            await Database(url).open()
        holder.kill()
    database = Database(url)  # the kernel gave the lock back
    await database.open()
    await database.close()


async def test_closing_waits_for_the_threads_of_cancelled_statements(tmp_path: Path) -> None:
    """They need the event loop until they end."""
    before = set(threading.enumerate())
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'weir.db'}")
    await database.open()

    async def ask() -> None:
        while True:
            await database.now_s()

    tasks = [asyncio.create_task(ask()) for _ in range(5)]
    await database.now_s()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await database.close()
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert [name for name in left if "_connection_worker" in name] == []


async def test_sqlite_commits_are_durable(tmp_path: Path) -> None:
    """§8.9: write-ahead log with synchronous=FULL (2)."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'weir.db'}")
    await database.open()
    async with database.read() as session:
        assert (await session.execute(text("PRAGMA synchronous"))).scalar_one() == 2
        assert (await session.execute(text("PRAGMA journal_mode"))).scalar_one() == "wal"
    await database.close()
