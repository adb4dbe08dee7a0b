"""What the API server can answer; each error says whether the same call may succeed later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_MESSAGE_CHARACTERS = 1000
HTTP_BAD_REQUEST = 400
HTTP_FORBIDDEN = 403
HTTP_NOT_FOUND = 404
HTTP_CONFLICT = 409
HTTP_TOO_LARGE = 413
HTTP_UNPROCESSABLE = 422
NOT_ITS_SCHEMA = ("failed to create typed patch object", "failed to convert new object")
"""How the API server begins what it says of an apply whose fields, or quantities, are not the
kind's: with a 500, as if it could pass by itself."""


class ClusterError(Exception):
    """A call failed. ``permanent``: the same call will fail again until something is changed."""

    permanent = False

    def __init__(self, message: str, *, status: int | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFoundError(ClusterError):
    """There is no such object, or no such kind."""


class ConflictError(ClusterError):
    """The version or the uid given is not the object's, or the object exists already."""


class RefusedError(ClusterError):
    """The API server finds the object wrong (400, 413, 422; or fields that its kind has not)."""

    permanent = True


class ForbiddenError(ClusterError):
    """Roles, a quota or an admission rule refuse it; someone may change that at any time."""


class NamespaceTerminatingError(ForbiddenError):
    """The namespace is being deleted: nothing can be made in it, and all in it goes."""


class UnreachableError(ClusterError):
    """No answer: no connection, or not in time."""


def error_of(what: str, status: int, body: bytes) -> ClusterError:
    """The error of an answer that is not a success. ``what``: the call, for the message."""
    answer = _status_object(body)
    reason = str(answer.get("reason") or "")
    said = str(answer.get("message") or body[:200].decode(errors="replace"))
    message = f"{what}: {status} {said}"[:MAX_MESSAGE_CHARACTERS]
    kinds: dict[int, type[ClusterError]] = {
        HTTP_BAD_REQUEST: RefusedError,
        HTTP_FORBIDDEN: ForbiddenError,
        HTTP_NOT_FOUND: NotFoundError,
        HTTP_CONFLICT: ConflictError,
        HTTP_TOO_LARGE: RefusedError,
        HTTP_UNPROCESSABLE: RefusedError,
    }
    kind = kinds.get(status, ClusterError)
    if kind is ForbiddenError and _terminating(answer):
        kind = NamespaceTerminatingError
    if said.startswith(NOT_ITS_SCHEMA):
        kind = RefusedError
    return kind(message, status=status, reason=reason)


def _terminating(answer: Mapping[str, Any]) -> bool:
    causes = (answer.get("details") or {}).get("causes") or []
    return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)


def _status_object(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
