"""A real PostgreSQL cluster for tests: made by initdb in a temporary folder.

It knows nothing of Weir's schema; a test gets an empty database and migrates it itself.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.support.processes import (
    ProcessDiedError,
    find_binary,
    free_port,
    stop,
    unprivileged_user,
    wait_ready,
)

ROOM_BYTES = 4 << 30
BINARIES = "usr/lib/postgresql/*/bin"
SETTINGS = {
    "fsync": "off",  # tests kill processes, never the machine
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "autovacuum": "off",
    "log_min_messages": "warning",
}


def memory_folder() -> str | None:
    """The folder of a file system in memory that has room for clusters; None where there is none.

    On a disk most of a database's making and dropping is the kernel's work on its 300 files.
    """
    folder = "/dev/shm"  # noqa: S108 - each cluster makes a folder of its own in it
    with contextlib.suppress(OSError):
        if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > ROOM_BYTES:
            return folder
    return None


class PostgresServer:
    """One cluster on a loopback port and a Unix socket; databases are made on demand.

    A folder under ``parent``, by default the system's temporary folder, holds everything: pytest's
    own is closed to the unprivileged user that the server runs as when the tests run as root.
    """

    def __init__(self, parent: str | None = None) -> None:
        """Makes the cluster and starts it. Raises ProcessDiedError when it does not come up."""
        self._user = unprivileged_user()
        self._password = secrets.token_hex(12)
        self.folder = Path(tempfile.mkdtemp(prefix="weir-test-postgres-", dir=parent))
        self._numbers = itertools.count(1)
        self._templates: set[str] = set()
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._initialise()
            self._start_on_free_port()
        except BaseException:
            self.close()
            raise

    def _initialise(self) -> None:
        password_file = self.folder / "password"
        password_file.write_text(self._password)
        if self._user is not None:
            shutil.chown(self.folder, self._user)
            shutil.chown(password_file, self._user)
        done = subprocess.run(
            [
                find_binary("initdb", BINARIES),
                *("--pgdata", self.folder / "data", "--username", "weir", "--no-sync"),
                *("--auth", "scram-sha-256", "--pwfile", password_file),
                *("--encoding", "UTF8", "--locale", "C"),
            ],
            user=self._user,
            cwd=self.folder,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise ProcessDiedError(f"initdb: {done.stderr.decode(errors='replace')}")

    def _start_on_free_port(self) -> None:
        for attempt in range(5):
            self.port = free_port()
            try:
                self.start()
            except ProcessDiedError as error:
                if attempt == 4 or "in use" not in str(error):
                    raise
            else:
                return

    def start(self) -> None:
        """Starts the server on its port, again after `stop` or `kill`."""
        log = self.folder / "log"
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    find_binary("postgres", BINARIES),
                    *("-D", self.folder / "data", "-k", self.folder, "-h", "127.0.0.1"),
                    *("-p", str(self.port)),
                    *options,
                ],
                user=self._user,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_ready(self._process, lambda: self._try_psql("SELECT 1"), log, within_s=240)

    def stop(self) -> None:
        """Shuts down as an administrator would (fast), keeping the data."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Ends the server without a checkpoint, keeping the data."""
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            stop(self._process, how=how)
            self._process = None

    def close(self) -> None:
        """Ends the server and removes everything."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def create_database(self, *, template: str | None = None) -> str:
        """The name of a new database, a copy of ``template`` when one is given."""
        name = f"weir_{next(self._numbers)}"
        copied = f' TEMPLATE "{template}"' if template else ""
        self.psql(f'CREATE DATABASE "{name}"{copied}')
        return name

    def template(self, name: str, prepare: Callable[[str], None]) -> str:
        """The name of a template database; ``prepare`` gets its URL once, when it is new."""
        if name not in self._templates:
            self.psql(f'CREATE DATABASE "{name}"')
            prepare(self.url(name))
            self._templates.add(name)
        return name

    def drop_database(self, name: str) -> None:
        """Drops a database and whoever is still connected to it."""
        self.psql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def url(self, database: str, *, driver: str = "postgresql+asyncpg") -> str:
        """The SQLAlchemy URL of a database; ``driver="postgresql"`` gives a libpq URL."""
        return f"{driver}://weir:{self._password}@127.0.0.1:{self.port}/{database}"

    def psql(self, statement: str, *, database: str = "postgres") -> str:
        """What one SQL statement prints. Raises RuntimeError with the server's message."""
        done = self._psql(statement, database)
        if done.returncode != 0:
            raise RuntimeError(f"psql: {done.stderr.decode(errors='replace')}")
        return done.stdout.decode()

    def _try_psql(self, statement: str) -> bool:
        return self._psql(statement, "postgres").returncode == 0

    def _psql(self, statement: str, database: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [
                find_binary("psql", BINARIES),
                *("--no-psqlrc", "-qAt", "-v", "ON_ERROR_STOP=1", "-h", str(self.folder)),
                *("-p", str(self.port), "-U", "weir", "-d", database, "-c", statement),
            ],
            env={**os.environ, "PGPASSWORD": self._password},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
