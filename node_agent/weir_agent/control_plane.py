"""HTTP to the control plane: sync, lines, results, commit (docs/protocol.md). No decisions.

Every error says whether the same call may succeed later.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx
from pydantic import BaseModel, ValidationError
from typing_extensions import override

from weir_agent import wire
from weir_agent.chunks.spool import Sealed

# 401 and 403 too: tokens are rotated, pods registered and keys replaced a little late.
RETRY_STATUS = frozenset({401, 403, 408, 425, 429, 500, 502, 503, 504, 507})
_REMEDIES = {
    401: "check WEIR_CONTROL_PLANE_KEY or WEIR_CONTROL_PLANE_TOKEN_FILE",
    403: "check that WEIR_CONTROL_PLANE_KEY is of scope agent, and WEIR_AGENT_ID the one it is for",
}
UNREADABLE = "unreadable_reply"
TOKEN_KEPT_S = 30.0
_READS_OF_A_PAGE = 5  # so many times may lines, or the answer to results, nearly stand still
MAX_ERROR_CHARACTERS = 300
_Body = TypeVar("_Body", bound=BaseModel)


class ControlPlaneError(Exception):
    """A call failed. ``retry``: the same call may succeed later, after ``retry_after_s`` if set."""

    def __init__(
        self, message: str, *, retry: bool, code: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.retry = retry
        self.code = code
        self.retry_after_s = retry_after_s


class ControlPlane(Protocol):
    """What the agent asks of the control plane; each raises ``ControlPlaneError``."""

    async def sync(self, request: wire.SyncRequest) -> wire.SyncReply:
        """One exchange of state."""
        ...

    async def lines(self, lease: wire.Lease, *, after: int, limit: int) -> list[wire.InputLine]:
        """Input lines of a chunk after a line; none means that there are no more."""
        ...

    async def upload(self, lease: wire.Lease, sealed: Sealed) -> str:
        """The id of the stored upload."""
        ...

    async def commit(self, chunk_id: str, request: wire.CommitRequest) -> wire.CommitReply:
        """What became of the chunk."""
        ...


class TokenFileAuth(httpx.Auth):
    """Sends the token in a file, which is read again now and then and when it is refused.

    Args:
        clock_s: a monotonic clock in seconds.
    """

    def __init__(self, path: Path, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock_s = clock_s
        self._token = ""
        self._read_at_s = float("-inf")

    @override
    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        """Adds the token; httpx's protocol.

        Raises:
            TransportError: the file cannot be read.
        """
        if self._clock_s() - self._read_at_s >= TOKEN_KEPT_S:
            self._read()
        request.headers["authorization"] = f"Bearer {self._token}"
        response = yield request
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            self._read_at_s = float("-inf")  # the next call reads it anew

    def _read(self) -> None:
        try:
            self._token = self._path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise httpx.TransportError(
                f"{self._path} (control_plane_token_file): {error}"
            ) from error
        self._read_at_s = self._clock_s()


class HttpControlPlane:
    """The control plane at a base URL."""

    def __init__(self, client: httpx.AsyncClient, *, agent_id: str, sync_timeout_s: float) -> None:
        """``client`` carries base URL, key and the timeout of transfers."""
        self._client = client
        self._agent_id = agent_id
        self._sync_timeout_s = sync_timeout_s
        still_s = client.timeout.read
        self._page_timeout_s = None if still_s is None else _READS_OF_A_PAGE * still_s

    async def sync(self, request: wire.SyncRequest) -> wire.SyncReply:
        """One exchange of state.

        Raises:
            ControlPlaneError: no reply, or a refusal.
        """
        response = await self._send(
            self._client.build_request(
                "POST",
                f"/internal/v1/agents/{self._agent_id}/sync",
                content=request.model_dump_json().encode(),
                headers={"content-type": "application/json"},
                timeout=self._sync_timeout_s,
            ),
            within_s=self._sync_timeout_s,
        )
        return _parse(wire.SyncReply, response.content)

    async def lines(self, lease: wire.Lease, *, after: int, limit: int) -> list[wire.InputLine]:
        """Input lines of a chunk after a line, at most ``limit`` of them.

        Raises:
            ControlPlaneError: no reply, or a refusal.
        """
        response = await self._send(
            self._client.build_request(
                "GET",
                f"/internal/v1/chunks/{lease.chunk_id}/lines",
                params={
                    "attempt": lease.attempt,
                    "nonce": lease.nonce,
                    "after": after,
                    "limit": limit,
                },
            ),
            within_s=self._page_timeout_s,
        )
        lines = []
        for record in response.content.split(b"\n"):
            if record.strip():
                lines.append(_input_line(record))
                await asyncio.sleep(0)  # online responses share this loop, and a page is long
        return lines

    async def upload(self, lease: wire.Lease, sealed: Sealed) -> str:
        """The id of the stored upload.

        Raises:
            ControlPlaneError: no reply, or a refusal.
        """
        bound = asyncio.timeout(None)
        response = await self._send(
            self._client.build_request(
                "PUT",
                f"/internal/v1/chunks/{lease.chunk_id}/results",
                params={
                    "attempt": lease.attempt,
                    "nonce": lease.nonce,
                    "sha256": sealed.sha256,
                    "lines": len(sealed.lines),
                },
                headers={
                    "content-type": "application/x-ndjson",
                    "content-length": str(sealed.size_bytes),
                },
                content=self._stream(sealed.blocks(), bound),
            ),
            within_s=self._page_timeout_s,
            bound=bound,
        )
        try:
            return str(response.json()["upload_id"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ControlPlaneError(f"upload: unreadable reply: {error}", retry=True) from error

    async def commit(self, chunk_id: str, request: wire.CommitRequest) -> wire.CommitReply:
        """What became of the chunk.

        Raises:
            ControlPlaneError: no reply, or a refusal.
        """
        response = await self._send(
            self._client.build_request(
                "POST",
                f"/internal/v1/chunks/{chunk_id}/commit",
                content=request.model_dump_json().encode(),
                headers={"content-type": "application/json"},
            ),
            within_s=self._page_timeout_s,
        )
        return _parse(wire.CommitReply, response.content)

    async def _stream(
        self, blocks: Iterator[bytes], bound: asyncio.Timeout
    ) -> AsyncIterator[bytes]:
        """The blocks, which may take as long as they go on; the answer to them has its time."""
        for block in blocks:
            yield block
        if self._page_timeout_s is not None:
            bound.reschedule(asyncio.get_running_loop().time() + self._page_timeout_s)

    async def _send(
        self,
        request: httpx.Request,
        *,
        within_s: float | None,
        bound: asyncio.Timeout | None = None,
    ) -> httpx.Response:
        try:
            # httpx's timeout is of each read alone: an answer that trickles would never end.
            async with bound or asyncio.timeout(within_s):
                response = await self._client.send(request)
        except TimeoutError:
            raise ControlPlaneError(
                f"no whole answer within {within_s or 0.0:g} s", retry=True
            ) from None
        except httpx.HTTPError as error:
            where = f"{request.url.netloc.decode()}, of WEIR_CONTROL_PLANE_URL"
            raise ControlPlaneError(
                f"{type(error).__name__}: {error} (at {where})", retry=True
            ) from error
        if response.is_success:
            return response
        code, message = _error_of(response)
        # Without a code of its own it is a proxy's answer, whatever the status: not a verdict.
        told = bool(code) and not response.is_redirect
        remedy = _REMEDIES.get(response.status_code)
        raise ControlPlaneError(
            f"{response.status_code} {code}: {message}" + (f" ({remedy})" if remedy else ""),
            retry=response.status_code in RETRY_STATUS or not told,
            code=code or str(response.status_code),
            retry_after_s=_retry_after_s(response),
        )


def _input_line(record: bytes) -> wire.InputLine:
    # What users wrote: pydantic's own parser refuses text that is no Unicode, and depth.
    try:
        given = json.loads(record)
    except (ValueError, RecursionError) as error:
        raise ControlPlaneError(f"InputLine: {error}", retry=True, code=UNREADABLE) from None
    return _validated(wire.InputLine, wire.InputLine.model_validate, given)


def _parse(model: type[_Body], content: bytes) -> _Body:
    return _validated(model, model.model_validate_json, content)


def _validated(model: type[_Body], validate: Callable[[Any], _Body], given: object) -> _Body:
    try:
        return validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ControlPlaneError(
            f"{model.__name__}.{where}: {problem['msg']}", retry=True, code=UNREADABLE
        ) from None


def _error_of(response: httpx.Response) -> tuple[str, str]:
    if response.is_redirect:
        target = response.headers.get("location", "another address")
        return "redirected", f"to {target}: name the address that answers in WEIR_CONTROL_PLANE_URL"
    try:
        error = json.loads(response.content)["error"]
        return str(error.get("code") or ""), str(error.get("message"))[:MAX_ERROR_CHARACTERS]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "", response.reason_phrase


def _retry_after_s(response: httpx.Response) -> float | None:
    try:
        return min(60.0, max(0.0, float(response.headers["retry-after"])))
    except (KeyError, ValueError):
        return None
