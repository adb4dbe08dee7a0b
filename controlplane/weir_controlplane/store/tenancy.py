"""The one place where rows are limited to their tenant: another tenant's id is not found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.errors import NotFoundError
from weir_controlplane.store.models import Batch, File

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
