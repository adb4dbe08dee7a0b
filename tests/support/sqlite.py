"""A migrated SQLite database without rows, made once a run: migrating takes longer than a test."""

from __future__ import annotations

import asyncio
import atexit
import functools
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from weir_controlplane.store.database import Database


def provide(path: Path) -> None:
    """Puts a copy at ``path``, unless a database is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_template() / "weir.db", path)


@functools.cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="weir-test-sqlite-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    migrate(f"sqlite+aiosqlite:///{folder}/weir.db")
    return folder


def migrate(url: str) -> None:
    """Migrates a database of either kind, from a thread: the caller's event loop is the tests'."""

    async def run() -> None:
        database = Database(url)
        await database.open()
        await database.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, run()).result()
