"""The links component: `/v1/results/{file_id}`, and the key that signs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from weir_controlplane.errors import NotFoundError
from weir_controlplane.files.endpoints import content_of
from weir_controlplane.links.signer import new_signing_secret
from weir_controlplane.services import Component, Services, ServicesDep
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.kubernetes_models import SigningKey
from weir_controlplane.store.tenancy import file_of_link

router = APIRouter(prefix="/v1/results")


async def read_signing_keys(services: Services) -> None:
    """Makes the first key, once for all replicas, and reads every key."""
    dialect = services.database.dialect
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    async with services.database.transaction() as session:
        await session.execute(
            insert(SigningKey)
            .values(id=1, secret=new_signing_secret(), created_at=db_now())
            .on_conflict_do_nothing()
        )
        found = await session.execute(select(SigningKey.secret).order_by(SigningKey.id.desc()))
        services.links.use(list(found.scalars()))


@router.get("/{file_id}")
async def result(
    file_id: str,
    services: ServicesDep,
    expires: Annotated[int, Query(ge=0, le=2**53)],
    signature: Annotated[str, Query(pattern="^[0-9a-f]{64}$")],
) -> StreamingResponse:
    """The bytes of a result file for whoever has the link.

    Raises:
        NotFoundError: the link is not ours, has expired, or the file is gone: all the same.
    """
    async with services.database.read() as session:
        now_s = await clock_s(session)
        if not services.links.allows(file_id, expires_at=expires, signature=signature, now_s=now_s):
            raise NotFoundError("the link is wrong or has expired; ask for a new one")
        file = await file_of_link(session, file_id)
    return await content_of(services, file)


def links_component() -> Component:
    """Signed links."""
    return Component(name="links", startup=(read_signing_keys,), routers=(router,))
