"""Errors as OpenAI's envelope, the only place where an error becomes a response; plain routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from weir_controlplane.errors import (
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    OverloadedError,
    WeirError,
)
from weir_controlplane.store.database import DEFECTS, OUTAGES

_log = structlog.get_logger(__name__)


class PlainRoute(APIRoute):
    """A route whose endpoint takes the request, finds its parameters itself and makes a response.

    For the busiest routes: to solve parameters and dependencies takes FastAPI longer than it takes
    to answer a sync. Errors become responses as everywhere.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[[Request], Awaitable[Response]],
        **options: Any,  # noqa: ANN401 - as APIRoute has them
    ) -> None:
        super().__init__(path, endpoint, **options)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = answer


def error_response(error: WeirError) -> JSONResponse:
    """The response for an error."""
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error.envelope(), status_code=error.status, headers=headers)


def install_errors(app: FastAPI) -> None:
    """Adds the error handlers to an application."""
    app.add_exception_handler(WeirError, _on_weir_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    for kind in OUTAGES:
        app.add_exception_handler(kind, _on_database)
    for kind in DEFECTS:  # the more specific handler wins
        app.add_exception_handler(kind, _on_unexpected)
    app.add_exception_handler(Exception, _on_unexpected)


async def _on_weir_error(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, WeirError):
        raise error
    return error_response(error)


async def _on_invalid(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    first: dict[str, Any] = error.errors()[0]
    place = [str(part) for part in first["loc"] if part not in {"body", "query", "path", "header"}]
    param = ".".join(place) or None
    named = f"{param}: " if param else ""
    return error_response(
        InvalidRequestError(f"{named}{first['msg']}", param=param, code="invalid_value")
    )


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    known: WeirError
    if error.status_code == HTTPStatus.NOT_FOUND:
        known = NotFoundError(f"there is nothing at {request.url.path}")
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        known = MethodNotAllowedError(f"{request.method} is not allowed here")
    else:
        known = InvalidRequestError(str(error.detail))
    response = error_response(known)
    response.status_code = error.status_code
    return response


async def _on_database(_request: Request, error: Exception) -> JSONResponse:
    cause = getattr(error, "orig", None) or error
    _log.warning("database_unavailable", error=str(cause)[:500])
    return error_response(OverloadedError("the database cannot be reached", code="unavailable"))


async def _on_unexpected(request: Request, error: Exception) -> JSONResponse:
    _log.error("unexpected_error", path=request.url.path, exc_info=error)
    return error_response(WeirError("internal error; the log has the details"))
