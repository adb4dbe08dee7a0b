"""Tenants and keys: what the administrator's calls do to the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.errors import InvalidRequestError, NotFoundError
from weir_controlplane.ids import new_id
from weir_controlplane.keys.secret import Scope, new_secret
from weir_controlplane.services import Services
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.models import ApiKey, Tenant

TOPIC = "keys"


@dataclass(frozen=True, kw_only=True)
class KeyRequest:
    """What an administrator asks a key to be. ``expires_in_s`` None: never."""

    tenant: str | None
    scope: Scope
    name: str
    agent_id: str | None
    expires_in_s: float | None


async def create_tenant(
    services: Services, *, name: str, max_batches: int | None, max_queued_tokens: int | None
) -> dict[str, Any]:
    """The new tenant.

    Raises:
        InvalidRequestError: the name is taken.
    """
    try:
        async with services.database.transaction() as session:
            tenant = Tenant(
                id=new_id("tenant_"),
                name=name,
                created_at=await clock_s(session),
                max_batches=max_batches,
                max_queued_tokens=max_queued_tokens,
            )
            session.add(tenant)
    except IntegrityError:
        raise InvalidRequestError(
            f"name: there is a tenant named {name}", param="name", code="name_taken"
        ) from None
    return _tenant_view(tenant)


async def list_tenants(services: Services) -> list[dict[str, Any]]:
    """Every tenant, by name."""
    async with services.database.read() as session:
        rows = (await session.execute(select(Tenant).order_by(Tenant.name))).scalars()
        return [_tenant_view(row) for row in rows]


async def create_key(services: Services, request: KeyRequest) -> dict[str, Any]:
    """The new key, with its secret.

    Raises:
        InvalidRequestError: there is no such tenant.
    """
    secret = new_secret()
    async with services.database.transaction() as session:
        tenant = await _find_tenant(session, request.tenant) if request.tenant else None
        now_s = await clock_s(session)
        key = ApiKey(
            id=new_id("key_"),
            tenant_id=tenant.id if tenant else None,
            agent_id=request.agent_id,
            scope=request.scope,
            name=request.name,
            prefix=secret.prefix,
            hash=secret.hash,
            created_at=now_s,
            expires_at=None if request.expires_in_s is None else now_s + request.expires_in_s,
        )
        session.add(key)
    return {**_key_view(key, tenant.name if tenant else None), "key": secret.text}


async def list_keys(services: Services) -> list[dict[str, Any]]:
    """Every key, the newest first."""
    statement = (
        select(ApiKey, Tenant.name)
        .outerjoin(Tenant, Tenant.id == ApiKey.tenant_id)
        .order_by(ApiKey.created_at.desc(), ApiKey.id)
    )
    async with services.database.read() as session:
        return [_key_view(key, name) for key, name in (await session.execute(statement)).all()]


async def revoke_key(services: Services, key_id: str) -> dict[str, Any]:
    """The key, revoked now or before.

    Raises:
        NotFoundError: there is no such key.
    """
    async with services.database.transaction() as session:
        key = await session.get(ApiKey, key_id)
        if key is None:
            raise NotFoundError(f"there is no key {key_id}", param="key_id")
        if key.revoked_at is None:
            key.revoked_at = await clock_s(session)
        tenant = await session.get(Tenant, key.tenant_id) if key.tenant_id else None
    services.keys.forget()
    await services.nudge.send(TOPIC)
    return _key_view(key, tenant.name if tenant else None)


async def _find_tenant(session: AsyncSession, name_or_id: str) -> Tenant:
    statement = select(Tenant).where((Tenant.id == name_or_id) | (Tenant.name == name_or_id))
    tenant = (await session.execute(statement)).scalars().first()
    if tenant is None:
        raise InvalidRequestError(f"tenant: there is no tenant {name_or_id}", param="tenant")
    return tenant


def _tenant_view(tenant: Tenant) -> dict[str, Any]:
    return {
        "id": tenant.id,
        "object": "tenant",
        "name": tenant.name,
        "created_at": int(tenant.created_at),
        "max_batches": tenant.max_batches,
        "max_queued_tokens": tenant.max_queued_tokens,
    }


def _key_view(key: ApiKey, tenant: str | None) -> dict[str, Any]:
    return {
        "id": key.id,
        "object": "api_key",
        "tenant": tenant or "",
        "scope": key.scope,
        "name": key.name,
        "agent_id": key.agent_id,
        "prefix": f"weir_{key.prefix}",
        "created_at": int(key.created_at),
        "expires_at": None if key.expires_at is None else int(key.expires_at),
        "revoked": key.revoked_at is not None,
    }
