"""`/admin/v1`: tenants and keys, for keys of scope admin."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, status
from pydantic import BaseModel, ConfigDict, Field

from weir_controlplane.errors import InvalidRequestError
from weir_controlplane.keys import service
from weir_controlplane.keys.auth import AdminDep
from weir_controlplane.keys.secret import Scope
from weir_controlplane.services import ServicesDep

Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w.@ -]+$")]
MAX_KEY_LIFE_S = 100 * 365 * 86_400
router = APIRouter(prefix="/admin/v1")


class NewTenant(BaseModel):
    """Body of a tenant's creation. A quota that is absent is the default of the settings."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    max_batches: int | None = Field(default=None, ge=1, le=2**53)
    max_queued_tokens: int | None = Field(default=None, ge=1, le=2**53)


class NewKey(BaseModel):
    """Body of a key's creation. ``tenant`` is an id or a name; a tenant key needs one."""

    model_config = ConfigDict(extra="forbid")

    tenant: Name | None = None
    scope: Scope = "tenant"
    name: Name = "unnamed"
    agent_id: str | None = Field(
        default=None, min_length=1, max_length=200, pattern=r"^[\w./:@-]+$"
    )
    expires_in_s: float | None = Field(default=None, gt=0, le=MAX_KEY_LIFE_S)


@router.post("/tenants", status_code=status.HTTP_201_CREATED)
async def create_tenant(body: NewTenant, _admin: AdminDep, services: ServicesDep) -> dict[str, Any]:
    """A new tenant."""
    return await service.create_tenant(
        services,
        name=body.name,
        max_batches=body.max_batches,
        max_queued_tokens=body.max_queued_tokens,
    )


@router.get("/tenants")
async def list_tenants(_admin: AdminDep, services: ServicesDep) -> dict[str, Any]:
    """Every tenant."""
    return {"object": "list", "data": await service.list_tenants(services)}


@router.post("/keys", status_code=status.HTTP_201_CREATED)
async def create_key(body: NewKey, _admin: AdminDep, services: ServicesDep) -> dict[str, Any]:
    """A new key; the only answer that ever shows it.

    Raises:
        InvalidRequestError: a tenant key without tenant, or a tenant or an agent id on another
            scope.
    """
    if body.scope == "tenant" and body.tenant is None:
        raise InvalidRequestError("tenant: a key of scope tenant needs a tenant", param="tenant")
    if body.scope != "tenant" and body.tenant is not None:
        # It would be listed as that tenant's, and is everybody's.
        raise InvalidRequestError("tenant: only for keys of scope tenant", param="tenant")
    if body.scope != "agent" and body.agent_id is not None:
        raise InvalidRequestError("agent_id: only for keys of scope agent", param="agent_id")
    return await service.create_key(
        services,
        service.KeyRequest(
            tenant=body.tenant,
            scope=body.scope,
            name=body.name,
            agent_id=body.agent_id,
            expires_in_s=body.expires_in_s,
        ),
    )


@router.get("/keys")
async def list_keys(_admin: AdminDep, services: ServicesDep) -> dict[str, Any]:
    """Every key, without its secret."""
    return {"object": "list", "data": await service.list_keys(services)}


@router.delete("/keys/{key_id}")
async def revoke_key(key_id: str, _admin: AdminDep, services: ServicesDep) -> dict[str, Any]:
    """Revokes a key; safe to repeat."""
    return await service.revoke_key(services, key_id)
