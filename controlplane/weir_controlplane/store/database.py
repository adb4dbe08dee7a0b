"""The database: engine, transactions and clock, the same for SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import structlog
from sqlalchemy import Connection, ExceptionContext, event, false, make_url, select
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InvalidatePoolError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from weir_controlplane.store.clock import db_now
from weir_controlplane.store.migrate import migrate
from weir_controlplane.store.models import SchemaInfo
from weir_controlplane.store.process_lock import ProcessLock

_SQLITE_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # a commit that was answered survives a power cut (§8.9)
    "PRAGMA foreign_keys=ON",
    "PRAGMA busy_timeout=30000",
)
IDLE_IN_TRANSACTION_S = 60.0
"""How long a transaction may do nothing. A replica that lost its host or network ends none: the
server waits for it for hours, and whoever needs its rows for the server."""
_WRITES = "weir_writes"
_IDLE_SINCE = "weir_idle_since"
_FRESH_S = 1.0
_READ_ONLY = asyncpg.ReadOnlySQLTransactionError.sqlstate
# Refused where nothing may be written, and neither writes nor locks anything.
_MAY_WRITE = select(SchemaInfo.level).where(false()).with_for_update()
_JOIN_S = 5.0
_ASK_AGAIN_S = 1.0
_NOT_YET = (OSError, asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError)
_REFUSALS = (DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError, TypeError, ValueError)
_log = structlog.get_logger(__name__)

OUTAGES: tuple[type[Exception], ...] = (
    DBAPIError,
    PoolTimeoutError,
    OSError,  # not listening
    asyncpg.PostgresError,  # raised bare while connecting: starting up, too many connections
    asyncpg.InterfaceError,
)
"""What an operation raises while the database cannot be used; `DEFECTS` are not among them."""
DEFECTS: tuple[type[Exception], ...] = (IntegrityError, ProgrammingError, DataError)
"""Database errors that repetition does not mend; `is_refusal` finds some more."""


def is_refusal(error: Exception) -> bool:
    """Whether the database refused a value: SQLAlchemy does not class asyncpg's errors so far."""
    driver = getattr(getattr(error, "orig", None), "__cause__", None)
    return isinstance(driver, asyncpg.DataError | ValueError)


def is_outage(error: Exception) -> bool:
    """Whether the database could not be used; nothing is wrong with what was asked of it."""
    return isinstance(error, OUTAGES) and not isinstance(error, DEFECTS) and not is_refusal(error)


def is_read_only(error: Exception) -> bool:
    """Whether the database answers, and may not be written to."""
    return bool(getattr(getattr(error, "orig", None), "sqlstate", None) == _READ_ONLY)


class Database:
    """Truth. Make one a process, `open` it in the event loop that will use it.

    Do not nest two `transaction` blocks in one task: on SQLite writers queue, and the inner one
    would wait for the outer one for ever.
    """

    def __init__(self, url: str, *, pool_connections: int = 10) -> None:
        parsed = make_url(url)
        self.dialect = parsed.get_backend_name()
        self._writer: asyncio.Lock | None = None
        self._lock: ProcessLock | None = None
        options: dict[str, Any] = {
            "pool_size": pool_connections,
            "max_overflow": 0,
            "hide_parameters": True,  # errors are logged: they carry no values of users
        }
        if self.dialect == "sqlite":
            self._lock = ProcessLock(Path(str(parsed.database)))
        else:
            # Work leases are fenced, so a statement may be cut off; a hung server must not hang us.
            options |= {"connect_args": {"command_timeout": 60, "timeout": 10}}
        self.engine: AsyncEngine = create_async_engine(url, **options)
        self._workers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        if self.dialect == "sqlite":
            _prepare_sqlite(self.engine, self._workers)
        else:
            _end_idle_transactions(self.engine)
            _ask_idle_connections(self.engine)
            _replace_read_only_connections(self.engine)

    async def open(self, *, wait_s: float = 0.0) -> None:
        """Takes the process lock (SQLite) and migrates.

        ``wait_s``: how long a server that does not answer yet is asked again.

        Raises:
            DatabaseInUseError: another process holds this SQLite database.
            SchemaTooNewError: the schema no longer supports this release.
            ConnectionError: the server does not answer in time, or may not be written to.
            ValueError: it refuses what the URL says.
        """
        if self._lock is not None:
            self._lock.acquire()
            self._writer = asyncio.Lock()
        try:
            await self._migrate_within(wait_s)
        except BaseException:
            await self.close()
            raise

    async def _migrate_within(self, wait_s: float) -> None:
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                await self._connect()
                async with self.transaction() as session:
                    connection = await session.connection()
                    await connection.run_sync(migrate)
                    await session.execute(_MAY_WRITE)
            except (*_NOT_YET, DBAPIError) as error:
                why = _why_not_yet(error)
                if why is None:
                    raise
                if time.monotonic() >= deadline_s:
                    raise ConnectionError(f"database_url: {why}") from error
                _log.warning("database_awaited", error=why)
                await asyncio.sleep(_ASK_AGAIN_S)
            else:
                return

    async def _connect(self) -> None:
        try:
            async with self.engine.connect():
                pass
        except _NOT_YET:
            raise
        except _REFUSALS as error:
            why = getattr(error, "orig", None) or error
            raise ValueError(f"database_url: cannot be connected with: {why}") from error

    async def close(self) -> None:
        """Closes every connection and gives the process lock back."""
        await self.engine.dispose()
        for worker in list(self._workers):
            # A cancelled statement's connection ends by itself; its thread still needs the loop.
            await asyncio.to_thread(worker.join, _JOIN_S)
        if self._lock is not None:
            self._lock.release()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        """A session that may write: committed when the block ends, rolled back when it raises."""
        async with (
            self._one_writer(),
            AsyncSession(self.engine, expire_on_commit=False) as session,
            session.begin(),
        ):
            _ = await session.connection(execution_options={_WRITES: True})
            yield session

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """A session for reading only: nothing in it is committed."""
        async with AsyncSession(self.engine, expire_on_commit=False) as session:
            yield session

    async def check(self) -> None:
        """Returns if the database answers and may be written to, else raises one of `OUTAGES`.

        An embedded one that may only be read is not told from others.
        """
        async with self.read() as session:
            await session.execute(_MAY_WRITE)

    async def now_s(self) -> float:
        """The database's clock: seconds since 1970."""
        async with self.read() as session:
            return await clock_s(session)

    @contextlib.asynccontextmanager
    async def _one_writer(self) -> AsyncIterator[None]:
        if self._writer is None:
            yield
            return
        async with self._writer:  # fair, and without SQLite's polling
            yield


async def clock_s(session: AsyncSession) -> float:
    """The database's clock inside a transaction: seconds since 1970."""
    return (await session.execute(select(db_now()))).scalar_one()


def _why_not_yet(error: Exception) -> str | None:
    """What a start waits for; None of an error that waiting does not mend."""
    if is_read_only(error):
        return "is read-only: a control plane needs the primary, with writing allowed"
    return f"cannot be reached: {error}" if isinstance(error, _NOT_YET) else None


def _end_idle_transactions(engine: AsyncEngine) -> None:
    """The server ends transactions of replicas that vanished; what waits for a file holds none.

    Not among the parameters with which a connection starts: poolers refuse unknown ones.
    """

    @event.listens_for(engine.sync_engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:  # noqa: ANN401
        timeout_ms = round(1e3 * IDLE_IN_TRANSACTION_S)
        setting = f"SET idle_in_transaction_session_timeout = {timeout_ms}"
        connection.run_async(lambda driver: driver.execute(setting))


def _ask_idle_connections(engine: AsyncEngine) -> None:
    """Whether an idle connection still lives is asked before its use, three round trips.

    The pool's own ``pre_ping`` asks every time: as many round trips as most transactions have.
    One that broke within `_FRESH_S` fails its statement, which is an outage as any other.
    """
    dialect = engine.sync_engine.dialect

    @event.listens_for(engine.sync_engine, "checkin")
    def _checkin(_connection: Any, record: Any) -> None:  # noqa: ANN401
        record.info[_IDLE_SINCE] = time.monotonic()

    @event.listens_for(engine.sync_engine, "checkout")
    def _checkout(connection: Any, record: Any, _proxy: Any) -> None:  # noqa: ANN401
        idle_since = record.info.get(_IDLE_SINCE)
        if idle_since is None or time.monotonic() - idle_since < _FRESH_S:
            return
        try:
            dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error


def _replace_read_only_connections(engine: AsyncEngine) -> None:
    """A connection that may not write is not used again: whether writing is allowed, new ones know.

    Sessions keep what held at their start (`default_transaction_read_only`, as hosts of databases
    set it when a disk is full), and one to a primary that became a standby goes on reading.
    """

    @event.listens_for(engine.sync_engine, "handle_error")
    def _handle_error(context: ExceptionContext) -> None:
        if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
            context.is_disconnect = True
            context.invalidate_pool_on_disconnect = False  # others may read meanwhile


def _prepare_sqlite(engine: AsyncEngine, workers: weakref.WeakSet[threading.Thread]) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:  # noqa: ANN401
        workers.add(connection.driver_connection._thread)  # noqa: SLF001 - it has no other name
        connection.isolation_level = None  # the driver begins nothing: _begin does
        cursor = connection.cursor()
        for pragma in _SQLITE_PRAGMAS:
            cursor.execute(pragma)
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES, False)
        # A reader that turns into a writer cannot wait: writers say so at the start.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
