"""Bodies of the agent protocol, read where FastAPI would take longer than the answer."""

from __future__ import annotations

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from weir_controlplane.errors import InvalidRequestError, PayloadTooLargeError

MAX_BODY_BYTES = 1 << 20
Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The body of a request.

    Raises:
        InvalidRequestError: it is not what it should be; names the field.
        PayloadTooLargeError: it is over a megabyte.
    """
    body = bytearray()
    async for block in request.stream():
        body += block
        if len(body) > MAX_BODY_BYTES:
            raise PayloadTooLargeError(f"the body is over {MAX_BODY_BYTES} bytes")
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        param = ".".join(str(part) for part in first["loc"]) or None
        named = f"{param}: " if param else ""
        raise InvalidRequestError(
            f"{named}{first['msg']}", param=param, code="invalid_value"
        ) from None
