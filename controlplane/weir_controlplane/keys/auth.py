"""Dependencies of endpoints: who calls, with which scope, limited to which tenant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request

from weir_controlplane.errors import AuthenticationError, PermissionDeniedError
from weir_controlplane.keys.authenticator import Principal
from weir_controlplane.keys.secret import Role, parse_secret
from weir_controlplane.keys.token_review import looks_like_token
from weir_controlplane.services import Services, ServicesDep, services_of
from weir_controlplane.store.database import OUTAGES

_CALLER = "weir.caller"  # in a request's scope


async def authenticate(request: Request, services: ServicesDep) -> Principal:
    """The caller of this request; found out once for each.

    Raises:
        AuthenticationError: there is no key, or it is unknown, revoked or expired.
        PermissionDeniedError: a ServiceAccount token of nobody who is expected.
        OverloadedError: the API server cannot be asked about a ServiceAccount token.
    """
    known = request.scope.get(_CALLER)
    if isinstance(known, Principal):
        return known
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not given:
        raise AuthenticationError("no API key: send the header Authorization: Bearer KEY")
    secret = parse_secret(given.strip())
    principal: Principal | None = None
    if secret is not None:
        principal = await services.keys.principal(services.database, secret)
    elif services.accounts is not None and looks_like_token(given.strip()):
        principal = await services.accounts.principal(services.database, given.strip())
    if principal is None:
        raise AuthenticationError("the API key is unknown, revoked or expired")
    request.scope[_CALLER] = principal
    return principal


async def tenant_of(request: Request, services: Services) -> str | None:
    """The tenant whose key a request shows; None: no tenant's, or nobody can say now."""
    _, _, given = request.headers.get("authorization", "").partition(" ")
    secret = parse_secret(given.strip())
    if secret is None:
        return None
    try:
        principal = await services.keys.principal(services.database, secret)
    except OUTAGES:
        return None
    return None if principal is None else principal.tenant_id


async def agent_of(request: Request) -> Principal:
    """The calling agent, as `AgentDep` gives it, for an endpoint without dependencies.

    Raises:
        AuthenticationError, PermissionDeniedError, OverloadedError: as `authenticate` says.
    """
    return _of_scope(await authenticate(request, await services_of(request)), "agent")


def _of_scope(principal: Principal, *scopes: Role) -> Principal:
    if principal.scope not in scopes:
        raise PermissionDeniedError(
            f"this call needs a key of scope {scopes[0]}; yours has scope {principal.scope}"
        )
    return principal


def _require(*scopes: Role) -> Callable[[Principal], Awaitable[Principal]]:
    async def check(principal: Annotated[Principal, Depends(authenticate)]) -> Principal:
        return _of_scope(principal, *scopes)

    return check


async def _tenant(principal: Annotated[Principal, Depends(_require("tenant"))]) -> str:
    if principal.tenant_id is None:
        raise PermissionDeniedError("the key belongs to no tenant")
    return principal.tenant_id


TenantDep = Annotated[str, Depends(_tenant)]
"""The id of the calling tenant; needs a key of scope tenant."""
AdminDep = Annotated[Principal, Depends(_require("admin"))]
"""The calling administrator."""
OperatorDep = Annotated[Principal, Depends(_require("admin", "operator"))]
"""The operator, or an administrator in its place."""
AgentDep = Annotated[Principal, Depends(_require("agent"))]
"""The calling agent; compare its ``agent_id``, when set, with the one in the path."""
