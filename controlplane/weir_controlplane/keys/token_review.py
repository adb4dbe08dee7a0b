"""Who a ServiceAccount token belongs to: the API server says (TokenReview), and is not asked twice.

No decision about what the bearer may do; that is `service_accounts`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import structlog

from weir_controlplane.errors import OverloadedError

KEPT_S = 60.0  # an answer is taken as good for so long
OUTAGE_KEPT_S = 600.0  # while the API server is away; never beyond the token's own expiry
REFUSED_KEPT_S = 5.0
TIMEOUT_S = 5.0
# For a fresh answer where the last one still serves: callers give up after a few seconds.
FRESH_WITHIN_S = 1.0
ASK_AGAIN_S = 10.0  # after no fresh answer came, where the last one still serves
OWN_TOKEN_KEPT_S = 30.0  # our own token, which the kubelet rotates
MAX_TOKEN_CHARS = 16 << 10
# Of requests with tokens that nobody has vouched for lately: they must not hold the others up.
MAX_STRANGERS = 64  # may wait for an answer at once
STRANGERS_AGAIN_S = 1.0  # while the API server does not answer: one at once, so far apart
_CACHE_TOKENS = 8192
_SHAPE = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_USER = re.compile(r"system:serviceaccount:(?P<namespace>[^:]+):(?P<name>[^:]+)")
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_UNAVAILABLE = "the Kubernetes API server cannot be asked who you are"
_log = structlog.get_logger(__name__)


class ReviewUnavailableError(Exception):
    """The API server gave no answer; says why."""


@dataclass(frozen=True, kw_only=True)
class Bearer:
    """A ServiceAccount, and the pod that the token is bound to, if any.

    ``lasts_s``: seconds from the answer to the end of the token, where that is known.
    """

    namespace: str
    service_account: str
    pod_name: str | None
    pod_uid: str | None
    lasts_s: float | None


@dataclass(frozen=True, kw_only=True)
class _Answer:
    bearer: Bearer | None
    at_s: float  # monotonic
    ask_at_s: float = float("-inf")  # not to be asked again before; monotonic


def looks_like_token(text: str) -> bool:
    """Whether this can be a ServiceAccount token: three parts of base64 text, of bounded length."""
    return len(text) <= MAX_TOKEN_CHARS and _SHAPE.fullmatch(text) is not None


class TokenReviewer:
    """Asks the API server, remembering its answers by the token's hash.

    Args:
        api_url: of the API server.
        ca_file: certificate authority of the API server.
        token_file: our own ServiceAccount token, read again as the kubelet rotates it.
        audience: that a token must be made for.
        clock_s: a monotonic clock.
        wall_clock_s: seconds since 1970, for the end of a token where an answer has no date.
    """

    def __init__(
        self,
        *,
        api_url: str,
        ca_file: Path | None,
        token_file: Path | None,
        audience: str,
        clock_s: Callable[[], float] = time.monotonic,
        wall_clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._url = f"{api_url.rstrip('/')}/apis/authentication.k8s.io/v1/tokenreviews"
        self._ca_file = ca_file
        self._token_file = token_file
        self._audience = audience
        self._clock_s = clock_s
        self._wall_clock_s = wall_clock_s
        # Apart: refused tokens, of which anybody can make as many as they like, push out no others.
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()
        self._refused: OrderedDict[bytes, _Answer] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Bearer | None]] = {}
        self._strangers = 0
        self._failed_at_s: float | None = None  # None: it answered what it was asked last
        self._client: httpx.AsyncClient | None = None
        self._own = ("", float("-inf"))

    async def bearer(self, token: str) -> Bearer | None:
        """Whose token this is; None: nobody's, or not made for us.

        Raises:
            OverloadedError: the API server does not answer and the token is not known (any more),
                or too many wait for that already.
        """
        key = hashlib.sha256(token.encode()).digest()
        known = self._answers.get(key) or self._refused.get(key)
        if known is not None and self._is_good(known, KEPT_S):
            return known.bearer
        if known is not None and known.bearer and self._is_good(known, OUTAGE_KEPT_S):
            if self._clock_s() < known.ask_at_s:
                return known.bearer
            return await self._freshly(key, token, known)
        self._admit_stranger()
        try:
            return await self._asked_about(key, token)
        except ReviewUnavailableError as error:
            raise OverloadedError(_UNAVAILABLE, code="unavailable") from error
        finally:
            self._strangers -= 1

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _freshly(self, key: bytes, token: str, lasting: _Answer) -> Bearer | None:
        """A fresh answer if it comes soon, else the one that lasts."""
        try:
            async with asyncio.timeout(FRESH_WITHIN_S):
                return await self._asked_about(key, token)
        except (ReviewUnavailableError, TimeoutError):
            if self._answers.get(key) is lasting:
                self._answers[key] = replace(lasting, ask_at_s=self._clock_s() + ASK_AGAIN_S)
            return lasting.bearer

    def _admit_stranger(self) -> None:
        """Counts one more who waits and is not known.

        Raises:
            OverloadedError: there are too many, or the API server does not answer.
        """
        if self._failed_at_s is None:
            has_room = self._strangers < MAX_STRANGERS
        else:
            rested = self._clock_s() - self._failed_at_s >= STRANGERS_AGAIN_S
            has_room = rested and not self._strangers
        if not has_room:
            raise OverloadedError(_UNAVAILABLE, code="unavailable")
        self._strangers += 1

    async def _asked_about(self, key: bytes, token: str) -> Bearer | None:
        asking = self._asking.get(key)
        if asking is None:
            # One question for all who ask meanwhile; its answer is kept, whoever still waits.
            asking = asyncio.create_task(self._review(key, token))
            self._asking[key] = asking
            asking.add_done_callback(lambda done: self._asked(key, done))
        return await asyncio.shield(asking)

    def _asked(self, key: bytes, done: asyncio.Task[Bearer | None]) -> None:
        self._asking.pop(key, None)
        if done.cancelled():
            return
        error = done.exception()
        self._failed_at_s = None if error is None else self._clock_s()
        if error is not None:
            _log.warning("token_review_unavailable", error=str(error))

    def _is_good(self, answer: _Answer, kept_s: float) -> bool:
        bearer = answer.bearer
        if bearer is None:
            kept_s = min(kept_s, REFUSED_KEPT_S)
        elif bearer.lasts_s is not None:
            kept_s = min(kept_s, bearer.lasts_s)
        return self._clock_s() - answer.at_s < kept_s

    async def _review(self, key: bytes, token: str) -> Bearer | None:
        bearer = await self._ask(token)
        for answers in (self._answers, self._refused):
            answers.pop(key, None)
        kept = self._refused if bearer is None else self._answers
        kept[key] = _Answer(bearer=bearer, at_s=self._clock_s())
        while len(kept) > _CACHE_TOKENS:
            kept.popitem(last=False)
        return bearer

    async def _ask(self, token: str) -> Bearer | None:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        try:
            async with asyncio.timeout(TIMEOUT_S):  # as a whole; the client's is for each wait
                headers = await self._headers()
                response = await self._http().post(self._url, json=body, headers=headers)
            if response.status_code != HTTPStatus.CREATED:
                raise ReviewUnavailableError(f"the API server answers {response.status_code}")
            status = response.json()["status"]
            now_s = _date_s(response) or self._wall_clock_s()
        except (httpx.HTTPError, OSError, ValueError, KeyError) as error:
            raise ReviewUnavailableError(f"{type(error).__name__}: {error}") from error
        return _bearer(status, token, self._audience, now_s)

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            verify: ssl.SSLContext | bool = True
            if self._ca_file is not None:
                verify = ssl.create_default_context(cafile=str(self._ca_file))
            self._client = httpx.AsyncClient(verify=verify, timeout=TIMEOUT_S, trust_env=False)
        return self._client

    async def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        token, read_at_s = self._own
        if self._clock_s() - read_at_s >= OWN_TOKEN_KEPT_S:
            # In a thread, where a file store that hangs may have left none: not for each review.
            token = (await asyncio.to_thread(self._token_file.read_text, encoding="utf-8")).strip()
            self._own = (token, self._clock_s())
        return {"Authorization": f"Bearer {token}"}


def _date_s(response: httpx.Response) -> float | None:
    """When the API server answered, by the clock that decides when tokens end: ours may be off."""
    try:
        return parsedate_to_datetime(response.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return None


def _bearer(status: dict[str, Any], token: str, audience: str, now_s: float) -> Bearer | None:
    """The bearer that a TokenReview's status names, checked once more against what was asked."""
    if status.get("authenticated") is not True or audience not in status.get("audiences", ()):
        return None
    user = status.get("user", {})
    match = _USER.fullmatch(str(user.get("username", "")))
    if match is None:
        return None
    extra = user.get("extra", {})
    expires_at = _expiry(token)
    return Bearer(
        namespace=match["namespace"],
        service_account=match["name"],
        pod_name=_only(extra.get(_POD_NAME)),
        pod_uid=_only(extra.get(_POD_UID)),
        lasts_s=None if expires_at is None else expires_at - now_s,
    )


def _only(values: object) -> str | None:
    return str(values[0]) if isinstance(values, list) and len(values) == 1 else None


def _expiry(token: str) -> float | None:
    """The ``exp`` of a token that the API server has found genuine."""
    try:
        claims = token.split(".")[1]
        padded = claims + "=" * (-len(claims) % 4)
        return float(json.loads(base64.urlsafe_b64decode(padded))["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        return None
