"""Receiving a file: from the request's body to the file store, in constant memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import structlog
from sqlalchemy import update

from weir_controlplane.errors import InvalidRequestError, PayloadTooLargeError
from weir_controlplane.files.multipart import Event, Field, FileBegin, FileData, form_events
from weir_controlplane.files.schemas import check_expiry_s, check_purpose, clean_filename
from weir_controlplane.files.service import forget_unfinished
from weir_controlplane.files.storage_writer import StorageWriter
from weir_controlplane.ids import new_id
from weir_controlplane.services import Services
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.models import File

FORM_BYTES = 64 << 10  # room for the other parts of the form, in the early check
_log = structlog.get_logger(__name__)


@dataclass
class _Form:
    """What the form has said so far."""

    filename: str | None = None
    fields: dict[str, str] = field(default_factory=dict)


class Uploads:
    """Receives files, as many at once as `Services.upload_room` has room for."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def receive(
        self, tenant_id: str, content_type: str, length: str | None, body: AsyncIterator[bytes]
    ) -> File:
        """The new file. It exists when this returns, and leaves nothing when this raises.

        What a cancelled one leaves is removed by the sweeper of abandoned uploads.

        Raises:
            InvalidRequestError: the form is wrong.
            PayloadTooLargeError: the file is over the bound.
            OverloadedError: too many uploads at once, or of this tenant.
            StorageFullError: the file store has no room.
        """
        bound = self._services.settings.max_file_bytes
        if length is not None and length.isdecimal() and int(length) > bound + FORM_BYTES:
            raise PayloadTooLargeError(_too_large(bound), param="file")
        with self._services.upload_room.place(tenant_id):
            file = await self._begin(tenant_id)
            try:
                return await self._receive(file, form_events(content_type, body))
            except Exception:  # not where it is cancelled: the store may be ending it yet
                await asyncio.shield(forget_unfinished(self._services, [file]))
                raise

    async def _begin(self, tenant_id: str) -> File:
        file_id = new_id("file-")
        async with self._services.database.transaction() as session:
            file = File(
                id=file_id,
                tenant_id=tenant_id,
                filename="",
                purpose="",
                size_bytes=0,
                status="uploading",
                storage_key=f"files/{file_id}",
                created_at=await clock_s(session),
            )
            session.add(file)
        return file

    async def _receive(self, file: File, events: AsyncIterator[Event]) -> File:
        form = _Form()
        async with self._services.storage.writer(file.storage_key) as writer:
            async for event in events:
                await self._take(form, writer, event)
            filename, purpose, expiry_s = _check(form)
        return await self._finish(file, writer, filename, purpose, expiry_s)

    async def _take(self, form: _Form, writer: StorageWriter, event: Event) -> None:
        match event:
            case Field(name, value):
                form.fields[name] = value
            case FileBegin(name, filename):
                if name != "file" or form.filename is not None:
                    raise InvalidRequestError("file: send exactly one file", param="file")
                form.filename = clean_filename(filename)
            case FileData(data):
                await writer.write(data)
                if writer.bytes > self._services.settings.max_file_bytes:
                    bound = self._services.settings.max_file_bytes
                    raise PayloadTooLargeError(_too_large(bound), param="file")

    async def _finish(
        self, file: File, writer: StorageWriter, filename: str, purpose: str, expiry_s: int | None
    ) -> File:
        async with self._services.database.transaction() as session:
            # It is created now: who has listed all files so far finds it after those.
            now_s = await clock_s(session)
            done = update(File).where(File.id == file.id, File.status == "uploading")
            found = await session.execute(
                done.values(
                    status="processed",
                    filename=filename,
                    purpose=purpose,
                    size_bytes=writer.bytes,
                    sha256=writer.sha256,
                    created_at=now_s,
                    expires_at=None if expiry_s is None else now_s + expiry_s,
                ).returning(File)
            )
            row = found.scalar_one_or_none()
        if row is None:  # the sweeper took it for abandoned
            raise InvalidRequestError("file: the upload took too long", param="file")
        return row


def _check(form: _Form) -> tuple[str, str, int | None]:
    if form.filename is None:
        raise InvalidRequestError("file: the form has no file", param="file")
    purpose = check_purpose(form.fields.get("purpose"))
    expiry_s = check_expiry_s(
        form.fields.get("expires_after[anchor]"), form.fields.get("expires_after[seconds]")
    )
    return form.filename, purpose, expiry_s


def _too_large(bound_bytes: int) -> str:
    return f"file: larger than {bound_bytes} bytes; split it into several batches"
