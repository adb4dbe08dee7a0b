"""`/admin/v1/namespaces` and `/admin/v1/uri-prefixes`, for keys of scope admin."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, status
from pydantic import BaseModel, ConfigDict, Field

from weir_controlplane.bindings import service
from weir_controlplane.keys.auth import AdminDep
from weir_controlplane.services import Component, ServicesDep

Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w.@ -]+$")]
Namespace = Annotated[str, Path(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
router = APIRouter(prefix="/admin/v1")


class NamespaceTenants(BaseModel):
    """Whose a namespace is. ``models``: who else may use what its services serve."""

    model_config = ConfigDict(extra="forbid")

    batchjobs: Name | None = None
    models: list[Name] = Field(default_factory=list, max_length=1000)


class NewPrefix(BaseModel):
    """A prefix under which a tenant may read inputs and, if ``writable``, write outputs."""

    model_config = ConfigDict(extra="forbid")

    tenant: Name
    prefix: str = Field(min_length=1, max_length=2048)
    writable: bool = False


@router.put("/namespaces/{namespace}")
async def bind_namespace(
    namespace: Namespace, body: NamespaceTenants, _admin: AdminDep, services: ServicesDep
) -> dict[str, Any]:
    """Binds a namespace to these tenants, instead of those before; to none: unbinds it."""
    return await service.bind_namespace(
        services, namespace, batchjobs=body.batchjobs, models=body.models
    )


@router.get("/namespaces")
async def list_namespaces(_admin: AdminDep, services: ServicesDep) -> dict[str, Any]:
    """Every namespace that is bound."""
    return {"object": "list", "data": await service.list_namespaces(services)}


@router.post("/uri-prefixes", status_code=status.HTTP_201_CREATED)
async def add_prefix(body: NewPrefix, _admin: AdminDep, services: ServicesDep) -> dict[str, Any]:
    """Gives a prefix to a tenant; safe to repeat."""
    return await service.add_prefix(
        services, tenant=body.tenant, prefix=body.prefix, writable=body.writable
    )


@router.get("/uri-prefixes")
async def list_prefixes(_admin: AdminDep, services: ServicesDep) -> dict[str, Any]:
    """Every prefix of every tenant."""
    return {"object": "list", "data": await service.list_prefixes(services)}


@router.delete("/uri-prefixes/{prefix_id}", status_code=status.HTTP_204_NO_CONTENT)
async def remove_prefix(prefix_id: str, _admin: AdminDep, services: ServicesDep) -> None:
    """Takes a prefix away; safe to repeat."""
    await service.remove_prefix(services, prefix_id)


def bindings_component() -> Component:
    """What administrators give to tenants."""
    return Component(name="bindings", startup=(service.ensure_default_tenant,), routers=(router,))
