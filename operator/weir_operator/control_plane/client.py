"""HTTP to the control plane: bounded retries, a timeout on each call, the token read again.

No decisions. Every error says whether the same call may succeed later.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx

from weir_operator.backoff import jittered_s
from weir_operator.metrics import OperatorMetrics
from weir_operator.planning.observed import FOREIGN_ANSWER, BatchReport, ServiceReport
from weir_operator.planning.types import CancelBatch, ControlPlaneRequest, PutBatchJob, RegisterPods
from weir_operator.planning.wire import (
    BATCHJOBS,
    SERVICES,
    Call,
    Json,
    ReportError,
    batch_report,
    call,
    service_report,
)

TRIES = 3
RETRY_FIRST_S = 0.2
RETRY_MOST_S = 1.0
HTTP_NOT_FOUND = 404
BATCH_NOT_FOUND = "batch_not_found"
UNREADABLE = "unreadable_answer"
HTTP_SERVER_ERROR = 500
RETRY_STATUS = frozenset({408, 425, 429})
MAX_ERROR_CHARACTERS = 500


class ControlPlaneError(Exception):
    """A call failed. ``code`` is the answer's own; ``status`` None: there was no answer."""

    def __init__(self, message: str, *, status: int | None = None, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    @property
    def unreachable(self) -> bool:
        """Whether the control plane did not answer, or could not."""
        return self.status is None or self.status >= HTTP_SERVER_ERROR

    @property
    def complaint(self) -> str | None:
        """What it said in the place of an answer; None: it said nothing that can be told."""
        said = not self.unreachable or self.code == UNREADABLE
        return str(self) if said else None

    @property
    def refused(self) -> bool:
        """Whether the same call will fail until someone changes something."""
        return not self.unreachable and self.status not in RETRY_STATUS


class TokenFile(httpx.Auth):
    """The bearer token of a file, read for each request: projected tokens rotate."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """Adds the token.

        Raises:
            ControlPlaneError: the file cannot be read.
        """
        try:
            token = (await asyncio.to_thread(self._path.read_text)).strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not text"
            raise ControlPlaneError(
                f"{self._path}: {why} (set WEIR_OPERATOR_CONTROL_PLANE_TOKEN_FILE)"
            ) from error
        request.headers["authorization"] = f"Bearer {token}"
        yield request


@dataclass(frozen=True, kw_only=True)
class HeardJob:
    """A BatchJob as the control plane has it."""

    uid: str
    namespace: str
    name: str
    report: BatchReport


@dataclass(frozen=True, kw_only=True)
class HeardService:
    """A service as the control plane has it."""

    namespace: str
    name: str
    report: ServiceReport


class ControlPlaneClient:
    """The control plane; every call raises ``ControlPlaneError``."""

    def __init__(
        self, client: httpx.AsyncClient, *, metrics: OperatorMetrics, random: Random
    ) -> None:
        """``client`` carries base URL, credentials and timeout; it stays the caller's."""
        self._client = client
        self._metrics = metrics
        self._random = random

    async def perform(self, request: ControlPlaneRequest) -> HeardJob | HeardService | None:
        """Does what is asked; the answer's object, None when it has none or there is nothing.

        Raises:
            ControlPlaneError: no answer, or a refusal.
        """
        name = type(request).__name__
        what = call(request)
        try:
            content = await self._call(name, what)
        except ControlPlaneError as error:
            if error.status == HTTP_NOT_FOUND and what.missing_is_done:
                return None
            raise
        match request:
            case PutBatchJob() | CancelBatch():
                return _job(_object(name, content))
            case RegisterPods():
                return _service(_object(name, content))
            case _:
                return None

    async def job(self, uid: str) -> HeardJob | None:
        """One BatchJob; None when the control plane knows none by this uid.

        Raises:
            ControlPlaneError: no answer, or a refusal.
        """
        try:
            content = await self._call("GetBatchJob", _get(f"{BATCHJOBS}/{uid}"))
        except ControlPlaneError as error:
            if error.status == HTTP_NOT_FOUND and error.code == BATCH_NOT_FOUND:
                return None
            raise
        return _job(_object("GetBatchJob", content))

    async def jobs(self) -> list[HeardJob]:
        """Every BatchJob, read in pages."""
        found: list[HeardJob] = []
        query = ""
        while True:
            content = await self._call("ListBatchJobs", _get(f"{BATCHJOBS}{query}"))
            page = _object("ListBatchJobs", content)
            found += [_job(item) for item in _items("ListBatchJobs", page)]
            if not page.get("has_more") or not page.get("last_uid"):
                return found
            query = f"?after={page['last_uid']}"

    async def services(self) -> list[HeardService]:
        """Every service."""
        content = await self._call("ListServices", _get(SERVICES))
        return [_service(item) for item in _items("ListServices", _object("ListServices", content))]

    async def _call(self, name: str, what: Call) -> bytes:
        """The answer's content. Calls are safe to repeat, so each is tried a few times.

        Raises:
            ControlPlaneError: no answer in the last of them, or a refusal.
        """
        failures = 0
        while True:
            try:
                content = await self._once(what)
            except ControlPlaneError as error:
                failures += 1
                self._metrics.control_plane_calls.labels(name, _outcome(error)).inc()
                if not error.unreachable or failures >= TRIES:
                    raise
            else:
                self._metrics.control_plane_calls.labels(name, "ok").inc()
                return content
            await asyncio.sleep(
                jittered_s(
                    failures, first_s=RETRY_FIRST_S, most_s=RETRY_MOST_S, random=self._random
                )
            )

    async def _once(self, what: Call) -> bytes:
        """The answer's content.

        Raises:
            ControlPlaneError: no answer, or a refusal.
        """
        try:
            response = await self._client.request(what.method, what.path, json=what.body)
        except (httpx.HTTPError, OSError) as error:
            raise ControlPlaneError(
                f"{what.method} {what.path}: {type(error).__name__}: {error}"
            ) from error
        if response.is_success:
            return response.content
        code, message = _error_of(response)
        raise ControlPlaneError(message, status=response.status_code, code=code)


def _get(path: str) -> Call:
    return Call(method="GET", path=path)


def _outcome(error: ControlPlaneError) -> str:
    return "unreachable" if error.status is None else str(error.status)


def _object(name: str, content: bytes) -> Json:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ControlPlaneError(f"{name}: the answer is not JSON", code=UNREADABLE) from error
    if not isinstance(found, dict):
        raise ControlPlaneError(f"{name}: the answer is no JSON object", code=UNREADABLE)
    return found


def _items(name: str, page: Json) -> list[Json]:
    found = page.get("data")
    if not isinstance(found, list):
        raise ControlPlaneError(f"{name}: data: not a list", code=UNREADABLE)
    return found


def _job(told: Json) -> HeardJob:
    try:
        return HeardJob(
            uid=told["uid"],
            namespace=told["namespace"],
            name=told["name"],
            report=batch_report(told),
        )
    except (ReportError, KeyError, TypeError) as error:
        raise _unlike("BatchJob", error) from error


def _service(told: Json) -> HeardService:
    try:
        return HeardService(
            namespace=told["namespace"],
            name=told["name"],
            report=service_report(told),
        )
    except (ReportError, KeyError, TypeError) as error:
        raise _unlike("LLMService", error) from error


def _unlike(what: str, error: Exception) -> ControlPlaneError:
    """The answer is nothing of that kind; a KeyError says no more than the name of a field."""
    known = isinstance(error, ReportError)
    said = str(error) if known else f"{what}: {type(error).__name__}: {error}"
    return ControlPlaneError(said, code=UNREADABLE)


def _error_of(response: httpx.Response) -> tuple[str, str]:
    status = response.status_code
    try:
        error = json.loads(response.content)["error"]
        code = str(error.get("code") or f"http_{status}")
        message = str(error.get("message"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        code = FOREIGN_ANSWER
        message = f"{status} {response.reason_phrase}, said by something before the control plane"
    return code, message[:MAX_ERROR_CHARACTERS]
