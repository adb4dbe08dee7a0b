"""Errors as OpenAI's envelope, the only place where an error becomes a response; plain routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weir_controlplane.errors import (
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    OverloadedError,
    WeirError,
)
from weir_controlplane.store.database import DEFECTS, OUTAGES, is_refusal

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
    """Adds the error handlers to an application, around all middleware that it has so far."""
    app.add_exception_handler(WeirError, _on_weir_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    for kind in OUTAGES:
        app.add_exception_handler(kind, _on_database)
    for kind in DEFECTS:  # the more specific handler wins
        app.add_exception_handler(kind, _on_unexpected)
    app.add_middleware(_LastResort)


class _LastResort:
    """ASGI middleware: logs and answers what no handler took.

    A handler of ``Exception`` would have the server log the error once more: Starlette answers and
    raises it again.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception as error:
            if scope["type"] != "http":
                raise
            response = await _on_unexpected(Request(scope), error)
            if not started:  # else the server sees an answer without its end, and hangs up
                await response(scope, receive, send)


async def _on_weir_error(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, WeirError):
        raise error
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, OverloadedError):
        # The words of the cause, never its repr: that of a decoding error shows the text itself.
        cause = error.__cause__
        _log.warning(
            "request_failed",
            path=request.url.path,
            error=error.message,
            cause=None if cause is None else f"{type(cause).__name__}: {cause}"[:500],
        )
    return error_response(error)


async def _on_invalid(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    return error_response(_refusal(error.errors()[0]))


def _refusal(found: Mapping[str, Any]) -> InvalidRequestError:
    """What is wrong with a request, of one of FastAPI's findings."""
    place = [str(part) for part in found["loc"][1:]]  # the first says: body, query, path, header
    if found["type"] == "json_invalid":
        why = f"{found['ctx']['error']} at character {int(place[-1]) + 1}"
        return InvalidRequestError(f"the body is not JSON: {why}", code="invalid_json")
    if not place:
        return InvalidRequestError(
            "the body must be a JSON object, with Content-Type: application/json",
            code="invalid_value",
        )
    param = ".".join(place)
    why = str(found["msg"]).removeprefix("Value error, ")
    return InvalidRequestError(f"{param}: {why}", param=param, code="invalid_value")


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    known: WeirError
    if isinstance(error.__cause__, (ValueError, RecursionError)):  # while FastAPI read the body
        known = InvalidRequestError(
            "the body is not JSON: it is not UTF-8, nests too deep, or has a number of more than "
            "4300 digits",
            code="invalid_json",
        )
    elif error.status_code == HTTPStatus.NOT_FOUND:
        known = NotFoundError(f"there is nothing at {request.url.path}")
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        known = MethodNotAllowedError(f"{request.method} is not allowed here")
    else:
        known = InvalidRequestError(str(error.detail))
    response = error_response(known)
    response.status_code = error.status_code
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["Allow"] = ", ".join(sorted(_methods_at(request)))
    return response


def _methods_at(request: Request) -> set[str]:
    """The methods of all routes with the request's path; the one that refused knows its own."""
    found: set[str] = set()
    for route in request.app.routes:
        match, _ = route.matches(request.scope)
        if isinstance(route, Route) and match is not Match.NONE:
            found |= route.methods or set()
    return found


async def _on_database(request: Request, error: Exception) -> JSONResponse:
    if is_refusal(error):
        _log.warning("value_refused", path=request.url.path)
        message = "a text has a NUL character, or a number is more than the database holds"
        return error_response(InvalidRequestError(message, code="invalid_value"))
    cause = getattr(error, "orig", None) or error
    _log.warning("database_unavailable", error=str(cause)[:500])
    return error_response(OverloadedError("the database cannot be reached", code="unavailable"))


async def _on_unexpected(request: Request, error: Exception) -> JSONResponse:
    _log.error("unexpected_error", path=request.url.path, exc_info=error)
    return error_response(WeirError("internal error; the log has the details"))
