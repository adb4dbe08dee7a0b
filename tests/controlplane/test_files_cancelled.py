"""What the end of a replica leaves of a file that the store is just ending (§8.8)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from tests.controlplane.test_batchjobs_leases import with_a_job
from weir_controlplane.batchjobs.leases import INPUTS, claim
from weir_controlplane.batchjobs.worker import work_on
from weir_controlplane.errors import InvalidRequestError
from weir_controlplane.files.service import sweep
from weir_controlplane.files.storage import Storage
from weir_controlplane.files.upload import Uploads
from weir_controlplane.services import Services
from weir_controlplane.store.models import File

FORM = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--b--\r\n'
)


async def upload(services: Services) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield FORM

    await Uploads(services).receive("t", "multipart/form-data; boundary=b", None, body())


async def take_in(services: Services) -> None:
    work = await claim(services, INPUTS)
    assert work is not None
    await work_on(services, work)


class Ending:
    """The last request of an upload, for as long as the test wants it to take."""

    def __init__(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        self._goes_on = threading.Event()
        self._publish = storage._publish
        self._begun, self._ended = threading.Event(), threading.Event()
        monkeypatch.setattr(storage, "_publish", self._slowly)

    def _slowly(self, *arguments: Any) -> None:  # noqa: ANN401
        self._begun.set()
        self._goes_on.wait()
        self._publish(*arguments)
        self._ended.set()

    @contextlib.asynccontextmanager
    async def of(self, receiving: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
        """That of an upload, which waits until the block ends."""
        task = asyncio.create_task(receiving)
        try:
            assert await asyncio.to_thread(self._begun.wait, 60)
            yield task
        finally:
            self._goes_on.set()

    async def ended(self) -> None:
        assert await asyncio.to_thread(self._ended.wait, 10)


async def swept_as_abandoned(services: Services) -> None:
    async with services.database.transaction() as session:
        await session.execute(update(File).values(created_at=1.0))
    await sweep(services)


async def nothing_is_left(services: Services) -> bool:
    async with services.database.read() as session:
        rows = (await session.execute(select(File.id))).all()
    return not rows and await services.storage.keys("files") == []


Receive = Callable[[Services], Coroutine[Any, Any, None]]


@pytest.mark.parametrize("receive", [upload, take_in])
async def test_an_object_that_appears_after_its_upload_was_cancelled_is_swept(
    tmp_path: Path,
    database_url: str,
    s3_url: str,
    monkeypatch: pytest.MonkeyPatch,
    receive: Receive,
) -> None:
    """The row was removed at once, and then nothing knew of the object.

    In a folder it was not to appear any more: what is to become it is removed by its name.
    """
    async with with_a_job(tmp_path, database_url, files_url=s3_url) as services:
        ending = Ending(services.storage, monkeypatch)
        async with ending.of(receive(services)) as task:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await ending.ended()
        assert len(await services.storage.keys("files")) == 1
        await sweep(services)
        assert len(await services.storage.keys("files")) == 1  # it may be on its way yet
        await swept_as_abandoned(services)
        assert await nothing_is_left(services)


@pytest.mark.parametrize("receive", [upload, take_in])
async def test_an_object_that_appears_after_the_sweeper_took_its_upload_for_abandoned_is_removed(
    tmp_path: Path,
    database_url: str,
    s3_url: str,
    monkeypatch: pytest.MonkeyPatch,
    receive: Receive,
) -> None:
    """That of a BatchJob's input stayed for ever: its row was gone before it was there."""
    async with with_a_job(tmp_path, database_url, files_url=s3_url) as services:
        async with Ending(services.storage, monkeypatch).of(receive(services)) as task:
            await swept_as_abandoned(services)
        with contextlib.suppress(InvalidRequestError):
            await task
        assert await nothing_is_left(services)
