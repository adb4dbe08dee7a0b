"""Namespaces and URI prefixes of tenants in the database."""

from __future__ import annotations

from typing import Any

import structlog
from sqlalchemy import and_, delete, or_, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.errors import InvalidRequestError
from weir_controlplane.ids import new_id
from weir_controlplane.services import Services
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.kubernetes_models import NamespaceBinding, UriPrefix
from weir_controlplane.store.models import Tenant
from weir_controlplane.uris.rules import (
    WRITABLE_SCHEMES,
    UriRefusedError,
    as_encoded,
    parse_uri,
)

CHUNKS_TOPIC = "chunks"
_log = structlog.get_logger(__name__)


async def ensure_default_tenant(services: Services) -> None:
    """Makes the tenant of namespaces that are bound to nobody, where one is named."""
    name = services.settings.default_tenant
    if name is None:
        return
    insert = postgresql.insert if services.database.dialect == "postgresql" else sqlite.insert
    async with services.database.transaction() as session:
        await session.execute(
            insert(Tenant)
            .values(id=new_id("tenant_"), name=name, created_at=db_now())
            .on_conflict_do_nothing(index_elements=["name"])
        )


async def bind_namespace(
    services: Services, namespace: str, *, batchjobs: str | None, models: list[str]
) -> dict[str, Any]:
    """Binds a namespace to these tenants (ids or names) and to no others.

    Raises:
        InvalidRequestError: there is no such tenant.
    """
    async with services.database.transaction() as session:
        owner = None if batchjobs is None else await _tenant(session, batchjobs, "batchjobs")
        users = [await _tenant(session, item, "models") for item in models]
        bound = {tenant.id: tenant for tenant in (*users, *([owner] if owner else ()))}
        if services.database.dialect == "postgresql":
            # Rows that another call has not committed yet can be neither locked nor deleted.
            await session.execute(text("LOCK TABLE namespace_bindings IN SHARE ROW EXCLUSIVE MODE"))
        await session.execute(
            delete(NamespaceBinding).where(NamespaceBinding.namespace == namespace)
        )
        now_s = await clock_s(session)
        session.add_all(
            NamespaceBinding(
                namespace=namespace,
                tenant_id=tenant_id,
                batchjobs=owner is not None and tenant_id == owner.id,
                created_at=now_s,
            )
            for tenant_id in bound
        )
    _log.info("namespace_bound", namespace=namespace, tenants=sorted(bound))
    await services.nudge.send(CHUNKS_TOPIC)
    return {
        "namespace": namespace,
        "batchjobs": owner.name if owner else None,
        "models": sorted(tenant.name for tenant in bound.values()),
    }


async def list_namespaces(services: Services) -> list[dict[str, Any]]:
    """Every namespace that is bound, by name."""
    statement = (
        select(NamespaceBinding.namespace, NamespaceBinding.batchjobs, Tenant.name)
        .join(Tenant, Tenant.id == NamespaceBinding.tenant_id)
        .order_by(NamespaceBinding.namespace, Tenant.name)
    )
    async with services.database.read() as session:
        rows = (await session.execute(statement)).all()
    found: dict[str, dict[str, Any]] = {}
    for namespace, batchjobs, tenant in rows:
        view = found.setdefault(
            namespace, {"namespace": namespace, "batchjobs": None, "models": []}
        )
        view["models"].append(tenant)
        if batchjobs:
            view["batchjobs"] = tenant
    return list(found.values())


async def add_prefix(
    services: Services, *, tenant: str, prefix: str, writable: bool
) -> dict[str, Any]:
    """The new prefix, or the one that is there.

    Raises:
        InvalidRequestError: there is no such tenant, or the prefix cannot be one.
    """
    try:
        uri = parse_uri(prefix)
    except UriRefusedError as error:
        raise InvalidRequestError(f"prefix: {error}", param="prefix") from None
    if uri.scheme == "file" and not uri.segments:
        raise InvalidRequestError("prefix: name a folder, not the whole disk", param="prefix")
    if writable and uri.scheme not in WRITABLE_SCHEMES:
        raise InvalidRequestError(
            f"writable: only prefixes of {' and '.join(WRITABLE_SCHEMES)} can be written to",
            param="writable",
        )
    async with services.database.transaction() as session:
        owner = await _tenant(session, tenant, "tenant", lock=True)
        same = or_(
            and_(UriPrefix.encoded, UriPrefix.prefix == uri.canonical),
            and_(~UriPrefix.encoded, UriPrefix.prefix == uri.text),
        )
        statement = select(UriPrefix).where(UriPrefix.tenant_id == owner.id, same)
        found = await session.execute(statement.order_by(UriPrefix.created_at, UriPrefix.id))
        row = found.scalars().first()
        if row is None:
            row = UriPrefix(
                id=new_id("prefix_"),
                tenant_id=owner.id,
                created_at=await clock_s(session),
            )
            session.add(row)
        row.prefix, row.encoded = uri.canonical, True
        row.writable = writable
    return _prefix_view(row, owner.name)


async def list_prefixes(services: Services) -> list[dict[str, Any]]:
    """Every prefix, by tenant."""
    statement = (
        select(UriPrefix, Tenant.name)
        .join(Tenant, Tenant.id == UriPrefix.tenant_id)
        .order_by(Tenant.name, UriPrefix.prefix)
    )
    async with services.database.read() as session:
        return [_prefix_view(row, name) for row, name in (await session.execute(statement)).all()]


async def remove_prefix(services: Services, prefix_id: str) -> None:
    """Takes a prefix away; without effect when there is none."""
    async with services.database.transaction() as session:
        await session.execute(delete(UriPrefix).where(UriPrefix.id == prefix_id))


async def _tenant(
    session: AsyncSession, name_or_id: str, param: str, *, lock: bool = False
) -> Tenant:
    statement = select(Tenant).where((Tenant.id == name_or_id) | (Tenant.name == name_or_id))
    if lock:
        statement = statement.with_for_update(key_share=True)
    tenant = (await session.execute(statement)).scalars().first()
    if tenant is None:
        raise InvalidRequestError(f"{param}: there is no tenant {name_or_id}", param=param)
    return tenant


def _prefix_view(row: UriPrefix, tenant: str) -> dict[str, Any]:
    return {
        "id": row.id,
        "object": "uri_prefix",
        "tenant": tenant,
        "prefix": as_encoded(row.prefix, encoded=row.encoded),
        "writable": row.writable,
    }
