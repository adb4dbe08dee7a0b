"""Errors that carry their disposition: an HTTP status and the fields of OpenAI's error envelope.

Raised anywhere in the control plane; turned into a response in `http.py` only.
"""

from __future__ import annotations

from typing import Any, ClassVar

MAX_RETRY_AFTER_S = 60


class WeirError(Exception):
    """An error with an answer for the caller.

    ``message`` says what is wrong and what would be right; ``param`` names the field.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else self.default_code
        self.retry_after_s = (
            None if retry_after_s is None else min(retry_after_s, MAX_RETRY_AFTER_S)
        )

    def envelope(self) -> dict[str, Any]:
        """The body of the response."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


class InvalidRequestError(WeirError):
    """The request is wrong and will stay so."""

    status = 400
    type = "invalid_request_error"


class AuthenticationError(WeirError):
    """No key, or one that is not known."""

    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"


class PermissionDeniedError(WeirError):
    """The key is known and its scope does not allow this."""

    status = 403
    type = "permission_error"
    default_code = "insufficient_scope"


class NotFoundError(WeirError):
    """There is no such thing, or it is another tenant's."""

    status = 404
    type = "invalid_request_error"
    default_code = "not_found"


class MethodNotAllowedError(WeirError):
    """The path exists, but not with this method."""

    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"


class RequestTimeoutError(WeirError):
    """The client stood still amid its body; it may send it again."""

    status = 408
    type = "invalid_request_error"
    default_code = "request_timeout"


class ConflictError(WeirError):
    """The caller acts on something that has moved on; give ``code``."""

    status = 409
    type = "conflict_error"


class PayloadTooLargeError(WeirError):
    """The body is over a bound."""

    status = 413
    type = "invalid_request_error"
    default_code = "payload_too_large"


class QuotaExceededError(WeirError):
    """The tenant has used up a quota."""

    status = 429
    type = "rate_limit_error"
    default_code = "quota_exceeded"


class OverloadedError(WeirError):
    """Too much is in flight, or the database cannot be reached: come back soon."""

    status = 503
    type = "overloaded_error"
    default_code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: int = 5, code: str | None = None) -> None:
        super().__init__(message, code=code, retry_after_s=retry_after_s)


class StorageFullError(WeirError):
    """The file store has no room."""

    status = 507
    type = "server_error"
    default_code = "storage_full"


class StorageError(WeirError):
    """The file store failed; the caller may try again."""

    status = 503
    type = "server_error"
    default_code = "storage_unavailable"

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after_s=10)


class MissingObjectError(StorageError):
    """The file store answers: it has no such object, or another than was stored."""
