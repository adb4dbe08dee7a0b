"""The one place where rows are limited to their tenant: another tenant's id is not found.

So are namespaces: their BatchJobs belong to a tenant, their models only to tenants bound to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from sqlalchemy import ColumnElement, and_, exists, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.errors import NotFoundError, PermissionDeniedError
from weir_controlplane.store.kubernetes_models import NamespaceBinding
from weir_controlplane.store.models import Batch, File, Tenant

Owned = TypeVar("Owned", File, Batch)
_NAMES = {File: "file", Batch: "batch"}


@dataclass(frozen=True, kw_only=True)
class PageRequest:
    """A page of a list, newest first unless ``order`` is asc; ``after`` is the last id seen."""

    after: str | None
    limit: int
    order: Literal["asc", "desc"] = "desc"


@dataclass(frozen=True, kw_only=True)
class Page(Generic[Owned]):
    """Rows of a page, and whether more follow."""

    rows: list[Owned]
    has_more: bool


class TenantScope:
    """The rows of one tenant, within one transaction."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._session = session
        self.tenant_id = tenant_id

    async def get(self, model: type[Owned], row_id: str, *, lock: bool = False) -> Owned:
        """The row with this id, locked for this transaction if asked (PostgreSQL).

        Raises:
            NotFoundError: there is none, it is gone, or it is another tenant's.
        """
        statement = select(model).where(
            model.tenant_id == self.tenant_id, model.id == row_id, *_visible(model)
        )
        if lock:
            # A batch is locked against everything, its chunks' commits included. A file's lock
            # lets the foreign keys of other rows pass: waiting for those would make circles.
            statement = statement.with_for_update(key_share=model is File)
        row = (await self._session.execute(statement)).scalar_one_or_none()
        if row is None:
            name = _NAMES[model]
            raise NotFoundError(f"there is no {name} {row_id[:100]!r}", param=f"{name}_id")
        return row

    async def had_file(self, file_id: str) -> bool:
        """Whether the tenant had this file, and it was deleted."""
        statement = select(File.id).where(
            File.tenant_id == self.tenant_id,
            File.id == file_id,
            File.status.in_(("deleted", "purged")),
        )
        return (await self._session.execute(statement)).first() is not None

    async def page(
        self, model: type[Owned], request: PageRequest, *where: ColumnElement[bool]
    ) -> Page[Owned]:
        """A page of the tenant's rows that satisfy ``where``.

        Raises:
            NotFoundError: ``after`` is no id of this tenant; a deleted one still counts (§8.7).
        """
        statement = select(model).where(model.tenant_id == self.tenant_id, *_visible(model), *where)
        falling = request.order == "desc"
        if request.after is not None:
            created_at = await self._created_at(model, request.after)
            statement = statement.where(_beyond(model, created_at, request.after, falling=falling))
        columns = (model.created_at, model.id)
        statement = statement.order_by(*(c.desc() if falling else c.asc() for c in columns))
        found = await self._session.execute(statement.limit(request.limit + 1))
        rows = list(found.scalars())
        return Page(rows=rows[: request.limit], has_more=len(rows) > request.limit)

    async def _created_at(self, model: type[Owned], row_id: str) -> float:
        statement = select(model.created_at).where(
            model.tenant_id == self.tenant_id, model.id == row_id
        )
        created_at = (await self._session.execute(statement)).scalar_one_or_none()
        if created_at is None:
            raise NotFoundError(f"after: there is no {row_id[:100]!r}", param="after")
        return created_at


def _visible(model: type[File | Batch]) -> list[ColumnElement[bool]]:
    return [File.status == "processed"] if model is File else []


def _beyond(
    model: type[File | Batch], created_at: float, row_id: str, *, falling: bool
) -> ColumnElement[bool]:
    if falling:
        earlier = and_(model.created_at == created_at, model.id < row_id)
        return or_(model.created_at < created_at, earlier)
    later = and_(model.created_at == created_at, model.id > row_id)
    return or_(model.created_at > created_at, later)


def page_view(page: Page[Any], data: list[dict[str, Any]]) -> dict[str, Any]:
    """A page on the wire. ``has_more`` is never true beside empty data: clients would stop."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": page.has_more,
    }


def namespace_of(service: str) -> str | None:
    """The namespace of a service named NAMESPACE/NAME; None outside Kubernetes."""
    namespace, slash, _ = service.partition("/")
    return namespace if slash else None


@dataclass(frozen=True, kw_only=True)
class Bindings:
    """Which tenants may use the models of which namespace, at one moment.

    A namespace that is bound to nobody is the default tenant's, when there is one. Services
    without a namespace (outside Kubernetes) are everybody's.
    """

    tenants: Mapping[str, frozenset[str]] = field(default_factory=dict)
    default_tenant_id: str | None = None

    def may_use(self, tenant_id: str, service: str) -> bool:
        """Whether a tenant's lines may run on the pods of a service."""
        namespace = namespace_of(service)
        if namespace is None:
            return True
        bound = self.tenants.get(namespace)
        return tenant_id == self.default_tenant_id if bound is None else tenant_id in bound


async def read_bindings(session: AsyncSession, default_tenant: str | None) -> Bindings:
    """Every binding; ``default_tenant`` is a name."""
    tenants: dict[str, set[str]] = {}
    rows = await session.execute(select(NamespaceBinding.namespace, NamespaceBinding.tenant_id))
    for namespace, tenant_id in rows:
        tenants.setdefault(namespace, set()).add(tenant_id)
    default_id = None
    if default_tenant is not None:
        named = select(Tenant.id).where(Tenant.name == default_tenant)
        default_id = (await session.execute(named)).scalar_one_or_none()
    return Bindings(
        tenants={namespace: frozenset(ids) for namespace, ids in tenants.items()},
        default_tenant_id=default_id,
    )


def may_serve(service: str, default_tenant: str | None) -> ColumnElement[bool]:
    """`Bindings.may_use` of a service as a condition on the rows of `Batch`."""
    namespace = namespace_of(service)
    if namespace is None:
        return literal(value=True)
    bound = exists().where(NamespaceBinding.namespace == namespace)
    own = bound.where(NamespaceBinding.tenant_id == Batch.tenant_id)
    if default_tenant is None:
        return own
    default = exists().where(Tenant.id == Batch.tenant_id, Tenant.name == default_tenant)
    return or_(own, and_(~bound, default))


async def file_of_link(session: AsyncSession, file_id: str) -> File:
    """A file for the holder of a signed link, which stands for its tenant.

    Raises:
        NotFoundError: it is gone.
    """
    statement = select(File).where(File.id == file_id, *_visible(File))
    file = (await session.execute(statement)).scalar_one_or_none()
    if file is None:
        raise NotFoundError("the file is gone")
    return file


async def tenant_of_namespace(
    session: AsyncSession, namespace: str, default_tenant: str | None
) -> str:
    """The id of the tenant whose the BatchJobs of a namespace are.

    Raises:
        PermissionDeniedError: nobody's: the administrator binds the namespace to a tenant.
    """
    rows = await session.execute(
        select(NamespaceBinding.tenant_id, NamespaceBinding.batchjobs).where(
            NamespaceBinding.namespace == namespace
        )
    )
    bound = rows.all()
    for tenant_id, batchjobs in bound:
        if batchjobs:
            return str(tenant_id)
    if not bound and default_tenant is not None:
        named = select(Tenant.id).where(Tenant.name == default_tenant)
        found = (await session.execute(named)).scalar_one_or_none()
        if found is not None:
            return found
    raise PermissionDeniedError(
        f"namespace: no tenant has the BatchJobs of {namespace}; an administrator binds it with "
        "PUT /admin/v1/namespaces/NAMESPACE",
        param="namespace",
        code="namespace_not_bound",
    )
