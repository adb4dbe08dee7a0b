"""`/v1/files`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from weir_controlplane.errors import NotFoundError
from weir_controlplane.files import service
from weir_controlplane.files.schemas import file_view
from weir_controlplane.files.upload import Uploads
from weir_controlplane.keys.auth import TenantDep
from weir_controlplane.repeats import RepeatsDep
from weir_controlplane.services import Services, ServicesDep
from weir_controlplane.store.models import File
from weir_controlplane.store.tenancy import PageRequest, TenantScope, page_view

router = APIRouter(prefix="/v1/files")


@router.post("")
async def create_file(
    request: Request, tenant_id: TenantDep, services: ServicesDep
) -> dict[str, Any]:
    """Stores an uploaded file."""
    file = await Uploads(services).receive(
        tenant_id,
        request.headers.get("content-type", ""),
        request.headers.get("content-length"),
        request.stream(),
    )
    return file_view(file)


@router.get("")
async def list_files(
    tenant_id: TenantDep,
    services: ServicesDep,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> dict[str, Any]:
    """A page of the tenant's files."""
    where = [] if purpose is None else [File.purpose == purpose]
    request = PageRequest(after=after, limit=limit, order=order)
    async with services.database.read() as session:
        page = await TenantScope(session, tenant_id).page(File, request, *where)
    return page_view(page, [file_view(row) for row in page.rows])


@router.get("/{file_id}")
async def retrieve_file(
    file_id: str, tenant_id: TenantDep, services: ServicesDep
) -> dict[str, Any]:
    """One file."""
    async with services.database.read() as session:
        return file_view(await TenantScope(session, tenant_id).get(File, file_id))


@router.delete("/{file_id}")
async def delete_file(
    file_id: str, tenant_id: TenantDep, services: ServicesDep, repeats: RepeatsDep
) -> dict[str, Any]:
    """Deletes a file that no unfinished batch reads. A repeat finds what the first call did.

    Raises:
        NotFoundError: there is no such file.
    """
    try:
        await service.delete_file(services, tenant_id, file_id)
    except NotFoundError:
        async with services.database.read() as session:
            if not (repeats and await TenantScope(session, tenant_id).had_file(file_id)):
                raise
    return {"id": file_id, "object": "file", "deleted": True}


@router.get("/{file_id}/content")
async def file_content(
    file_id: str, tenant_id: TenantDep, services: ServicesDep
) -> StreamingResponse:
    """The bytes of a file."""
    async with services.database.read() as session:
        file = await TenantScope(session, tenant_id).get(File, file_id)
    return await content_of(services, file)


async def content_of(services: Services, file: File) -> StreamingResponse:
    """A response that streams a file.

    Raises:
        StorageError: the file store fails, or the object is missing.
    """
    blocks = services.storage.stream(file.storage_key, end=file.size_bytes)
    first = await anext(blocks, b"")  # a missing object is an error, not an empty answer

    async def content() -> AsyncIterator[bytes]:
        yield first
        async for block in blocks:
            yield block

    return StreamingResponse(
        content(),
        media_type="application/octet-stream",
        headers={
            "Content-Length": str(file.size_bytes),
            "Content-Disposition": f'attachment; filename="{file.id}.jsonl"',
        },
    )
