"""The URIs of a BatchJob against the prefixes of its tenant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import structlog
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.errors import InvalidRequestError
from weir_controlplane.store.kubernetes_models import UriPrefix
from weir_controlplane.uris.rules import Uri, UriRefusedError, as_encoded, check_within, parse_uri

CODE = "uri_not_allowed"
_log = structlog.get_logger(__name__)


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
    statement = select(UriPrefix.id, UriPrefix.prefix, UriPrefix.encoded).where(
        UriPrefix.tenant_id == tenant_id
    )
    if writable:
        statement = statement.where(UriPrefix.writable)
    prefixes = _readable((await session.execute(statement)).all())
    try:
        uri = parse_uri(text)
        return AllowedUri(uri=uri, prefix=check_within(uri, prefixes))
    except UriRefusedError as error:
        raise InvalidRequestError(f"{param}: {error}", param=param, code=CODE) from None


def _readable(rows: Iterable[Row[str, str, bool]]) -> list[Uri]:
    """The prefixes; without those that an earlier release stored in a form that is no URI."""
    found = []
    for prefix_id, text, encoded in rows:
        try:
            found.append(parse_uri(as_encoded(text, encoded=encoded)))
        except UriRefusedError as error:
            _log.warning("uri_prefix_not_readable", prefix_id=prefix_id, error=str(error))
    return found
