"""The control plane as the commands see it: typed calls over HTTP, errors as `CliError`.

Nothing is printed here.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from weir_cli.errors import CliError, ExitStatus, RefusedError, UnavailableError
from weir_cli.models import ApiKey, Batch, KeyRequest, NewApiKey, StoredFile, Tenant
from weir_cli.no_answer import remedy_for, remedy_for_strange
from weir_cli.settings import ClientSettings

ATTEMPTS = 4
RETRIED = frozenset({408, 429, 500, 502, 503, 504})
# What breaks when a control plane is restarted or lost. A call that was read is not among them.
BROKEN = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)
REPEATS = "X-Stainless-Retry-Count"  # as OpenAI's clients say that they sent a call before
SERVER_ERROR = 500
FILE_CONTENT = "application/octet-stream"
TIMEOUT = httpx.Timeout(connect=10, read=120, write=120, pool=10)
Model = TypeVar("Model", bound=BaseModel)


class Api:
    """Calls to one control plane. Calls that are safe to repeat are repeated with back-off."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Makes a client; no call is made yet. ``settings.api_key`` must be present.

        Raises:
            CliError: the environment names a proxy or certificates that cannot be used.
        """
        key = settings.api_key.get_secret_value() if settings.api_key else ""
        self._base_url = settings.url.rstrip("/").removesuffix("/v1")
        self._sleep = sleep
        try:
            self._http = httpx.Client(
                base_url=self._base_url,
                headers={"Authorization": f"Bearer {key}"},
                timeout=TIMEOUT,
                transport=transport,
            )
        except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
            # What is wrong with a URL is told by a piece of it, which may be a proxy's password.
            is_url = isinstance(error, httpx.InvalidURL)
            why = "" if is_url else f": {getattr(error, 'strerror', None) or error}"
            raise CliError(
                f"cannot call {self._base_url} ({type(error).__name__}{why})",
                remedy="check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY and SSL_CERT_FILE in "
                "the environment, and --url or WEIR_URL",
                status=ExitStatus.USAGE,
            ) from error

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def upload(self, name: str, content: IO[bytes]) -> str:
        """The id of a new input file. Not repeated: the content is a stream."""
        answer = self._once(
            "POST", "/v1/files", data={"purpose": "batch"}, files={"file": (name, content)}
        )
        return self.parsed(StoredFile, answer).id

    def delete_file(self, file_id: str) -> None:
        """Deletes a file."""
        self.call("DELETE", f"/v1/files/{_segment(file_id)}")

    def create_batch(
        self, input_file_id: str, endpoint: str, window: str, metadata: Mapping[str, str]
    ) -> Batch:
        """A new batch. One key covers all attempts, so a repeat makes no second one."""
        body: dict[str, Any] = {
            "input_file_id": input_file_id,
            "endpoint": endpoint,
            "completion_window": window,
        }
        if metadata:
            body["metadata"] = dict(metadata)
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return self._batch(self.call("POST", "/v1/batches", json=body, headers=headers))

    def batch(self, batch_id: str) -> Batch:
        """One batch."""
        return self._batch(self.call("GET", f"/v1/batches/{_segment(batch_id)}"))

    def batches(self, limit: int) -> list[Batch]:
        """The newest batches."""
        return self._listed(Batch, self.call("GET", "/v1/batches", params={"limit": limit}))

    def cancel(self, batch_id: str) -> Batch:
        """The batch, being cancelled."""
        return self._batch(self.call("POST", f"/v1/batches/{_segment(batch_id)}/cancel"))

    @contextmanager
    def file_content(self, file_id: str) -> Iterator[tuple[int | None, Iterator[bytes]]]:
        """The size of a file in bytes, if known, and its content piece by piece.

        Raises:
            UnavailableError: what is answered is no file, as a proxy's page.
        """
        with (
            self._transport_errors(),
            self._http.stream("GET", f"/v1/files/{file_id}/content") as response,
        ):
            if not response.is_success:
                response.read()
                raise self._refused(response)
            if response.headers.get("content-type") != FILE_CONTENT:
                raise self._strange()
            length = response.headers.get("content-length")
            yield int(length) if length else None, response.iter_bytes(1 << 16)

    def create_tenant(
        self, name: str, *, max_batches: int | None = None, max_queued_tokens: int | None = None
    ) -> Tenant:
        """A new tenant; limits as in ``Tenant``."""
        body = {"name": name, "max_batches": max_batches, "max_queued_tokens": max_queued_tokens}
        return self.parsed(Tenant, self._once("POST", "/admin/v1/tenants", json=body))

    def list_tenants(self) -> list[Tenant]:
        """All tenants, by name."""
        return self._listed(Tenant, self.call("GET", "/admin/v1/tenants"))

    def create_key(self, request: KeyRequest) -> NewApiKey:
        """A new key with its secret; not repeated, each call makes another."""
        body = request.model_dump(exclude_none=True)
        return self.parsed(NewApiKey, self._once("POST", "/admin/v1/keys", json=body))

    def list_keys(self) -> list[ApiKey]:
        """All keys."""
        return self._listed(ApiKey, self.call("GET", "/admin/v1/keys"))

    def revoke_key(self, key_id: str) -> ApiKey:
        """The key, revoked."""
        return self.parsed(ApiKey, self.call("DELETE", f"/admin/v1/keys/{_segment(key_id)}"))

    def call(self, method: str, path: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401
        """The JSON answer of a call that is safe to repeat; ``options`` as in httpx.

        Raises:
            UnavailableError: no answer, after several attempts.
        """
        for attempt in range(1, ATTEMPTS):
            try:
                with self._transport_errors():
                    response = self._http.request(method, path, **_marked(options, attempt - 1))
            except UnavailableError as error:
                if not isinstance(error.__cause__, BROKEN):
                    raise
                self._sleep(random.uniform(0, 2.0**attempt))  # noqa: S311
                continue
            if response.status_code not in RETRIED:
                return self._answer(response)
            self._sleep(_retry_after_s(response) or random.uniform(0, 2.0**attempt))  # noqa: S311
        return self._once(method, path, **_marked(options, ATTEMPTS - 1))

    def _once(self, method: str, path: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401
        with self._transport_errors():
            return self._answer(self._http.request(method, path, **options))

    def _answer(self, response: httpx.Response) -> dict[str, Any]:
        if not response.is_success:  # a redirect has done nothing
            raise self._refused(response)
        try:
            answer = response.json() if response.content else {}
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self._strange()
        return answer

    def _batch(self, answer: dict[str, Any]) -> Batch:
        return self.parsed(Batch, answer)

    def _listed(self, model: type[Model], answer: dict[str, Any]) -> list[Model]:
        items = answer.get("data")
        if not isinstance(items, list):
            raise self._strange()
        return [self.parsed(model, item) for item in items]

    def parsed(self, model: type[Model], answer: object) -> Model:
        """An answer as a model.

        Raises:
            UnavailableError: it is not one, so no control plane gave it.
        """
        try:
            return model.model_validate(answer)
        except ValidationError:
            raise self._strange() from None

    def _strange(self) -> UnavailableError:
        """No control plane gave this answer."""
        return UnavailableError(
            f"{self._base_url} does not answer like a Weir control plane",
            remedy="check --url or WEIR_URL",
            status=ExitStatus.REFUSED,
        )

    @contextmanager
    def _transport_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.RequestError as error:
            raise UnavailableError(
                f"no answer from {self._base_url} ({str(error) or type(error).__name__})",
                remedy=remedy_for(error, self._base_url),
                status=ExitStatus.UNREACHABLE,
            ) from error

    def _refused(self, response: httpx.Response) -> CliError:
        if response.has_redirect_location:
            return UnavailableError(
                f"refused ({response.status_code}): {self._base_url} sends this call on to "
                f"{response.headers['location']}, and redirects are not followed",
                remedy="give --url or WEIR_URL as the control plane's own address (https?)",
                status=ExitStatus.REFUSED,
            )
        remedies = {  # by the control plane itself
            401: "check --api-key or WEIR_API_KEY; the key may have been revoked",
            403: "this needs a key of another scope; `weir keys create` makes one",
            404: "check the id (ids of other tenants cannot be seen), and --url or WEIR_URL",
            413: "split the input file",
            429: "wait for a batch to end, or cancel one",
            503: "try again in a minute: it is busy, or waits for its database or file store",
            507: "try again when its file store has room again",
        }
        message = _error_message(response)
        # Without an error of its own it is a proxy's answer, whatever the status: not a verdict.
        told = message is not None and response.status_code < SERVER_ERROR
        kind = RefusedError if told else UnavailableError
        words = message or response.text[:200] or response.reason_phrase
        remedy = remedies.get(response.status_code)
        return kind(
            f"refused ({response.status_code}): {words}",
            remedy=remedy if message is not None else remedy_for_strange(self._base_url),
            status=ExitStatus.REFUSED,
        )


def _marked(options: Mapping[str, Any], repeats: int) -> dict[str, Any]:
    """The options of a call that was sent so often before.

    The control plane then answers a repeat with what the lost answer would have said: a batch that
    the first call has cancelled cannot be cancelled again.
    """
    if repeats == 0:
        return dict(options)
    return {**options, "headers": {**options.get("headers", {}), REPEATS: str(repeats)}}


def _segment(given: str) -> str:
    """An id as a segment of a path.

    Raises:
        CliError: it is empty, so the path would name something else.
    """
    if not given.strip():
        raise CliError(
            "the id is empty",
            remedy="give it as `weir batch status` or `weir keys list` shows it",
            status=ExitStatus.USAGE,
        )
    return quote(given, safe="")


def _error_message(response: httpx.Response) -> str | None:
    """What the control plane says is wrong; None of an answer that is not its own."""
    try:
        error = response.json()["error"]
        message, param = str(error["message"]), error.get("param")
        return f"{param}: {message}" if param and not message.startswith(param) else message
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _retry_after_s(response: httpx.Response) -> float | None:
    value = response.headers.get("retry-after", "")
    return min(float(value), 60.0) if value.isdecimal() else None
