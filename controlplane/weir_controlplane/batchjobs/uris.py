"""The URIs of a BatchJob against the prefixes of its tenant."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.errors import InvalidRequestError
from weir_controlplane.store.kubernetes_models import UriPrefix
from weir_controlplane.uris.rules import Uri, UriRefusedError, check_within, parse_uri

CODE = "uri_not_allowed"


@dataclass(frozen=True, kw_only=True)
class AllowedUri:
    """A URI and the prefix of its tenant that allows it."""

    uri: Uri
    prefix: Uri


async def allowed_uri(
    session: AsyncSession, tenant_id: str, text: str, *, param: str, writable: bool = False
) -> AllowedUri:
    """The URI, if its tenant may read from it, or write to it.

    Raises:
        InvalidRequestError: ``uri_not_allowed``; says why.
    """
    statement = select(UriPrefix.prefix).where(UriPrefix.tenant_id == tenant_id)
    if writable:
        statement = statement.where(UriPrefix.writable)
    prefixes = [parse_uri(found) for found in (await session.execute(statement)).scalars()]
    try:
        uri = parse_uri(text)
        return AllowedUri(uri=uri, prefix=check_within(uri, prefixes))
    except UriRefusedError as error:
        raise InvalidRequestError(f"{param}: {error}", param=param, code=CODE) from None
