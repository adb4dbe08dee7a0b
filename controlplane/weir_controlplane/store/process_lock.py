"""One process on one SQLite database: a lock on a sidecar file that names its holder (§8.9)."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import IO


class DatabaseInUseError(Exception):
    """Another process holds the embedded database; the message names it."""


class ProcessLock:
    """An advisory lock that the kernel drops when the process ends, however it ends."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Takes the lock and writes down who holds it.

        Raises:
            DatabaseInUseError: another process has it: stop that one, or use PostgreSQL.
            ConnectionError: the folder cannot be written.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._path.open("a+", encoding="utf-8")
        except OSError as error:
            raise ConnectionError(
                f"data_dir, database_url: {self._path.parent} cannot be written: {error}"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "a process that has not written its name yet"
            file.close()
            raise DatabaseInUseError(
                f"{self._path} is held by {holder}: SQLite serves one control-plane process; "
                "stop that one, choose another WEIR_DATA_DIR, or set WEIR_DATABASE_URL to "
                "PostgreSQL"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Gives the lock back; without effect when it is not held."""
        if self._file is not None:
            self._file.close()
            self._file = None
