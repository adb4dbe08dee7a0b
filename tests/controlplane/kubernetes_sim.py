"""A stand-in for the API server's TokenReview, and tokens for it."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response


def token_of(
    namespace: str,
    account: str,
    *,
    pod: str | None = None,
    uid: str | None = None,
    audience: str = "weir",
    life_s: float = 3600.0,
) -> str:
    """A token in the shape of Kubernetes' own; only `FakeApiServer` believes it."""
    claims: dict[str, Any] = {
        "sub": f"system:serviceaccount:{namespace}:{account}",
        "aud": [audience],
        "exp": int(time.time() + life_s),
    }
    if pod is not None:
        claims["kubernetes.io"] = {"pod": {"name": pod, "uid": uid}}
    parts = (b'{"alg":"RS256"}', json.dumps(claims).encode(), b"signature")
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@dataclass
class FakeApiServer:
    """Answers TokenReviews.

    ``away`` makes every answer a 503, ``hangs`` holds answers up until it is set, ``revoked`` holds
    tokens refused; ``asked`` has what was answered, ``callers`` all who asked.
    """

    away: bool = False
    hangs: asyncio.Event | None = None
    revoked: set[str] = field(default_factory=set)
    asked: list[dict[str, Any]] = field(default_factory=list)
    callers: list[str] = field(default_factory=list)

    @property
    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/apis/authentication.k8s.io/v1/tokenreviews")
        async def review(request: Request) -> Response:
            self.callers.append(request.headers.get("authorization", ""))
            if self.hangs is not None:
                await self.hangs.wait()
            if self.away:
                return Response(status_code=503)
            body = await request.json()
            self.asked.append(body)
            status = self._status(body["spec"]["token"], body["spec"]["audiences"])
            return Response(
                json.dumps({**body, "status": status}),
                status_code=201,
                media_type="application/json",
            )

        return app

    def _status(self, token: str, audiences: list[str]) -> dict[str, Any]:
        middle = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
        shared = [name for name in claims["aud"] if name in audiences]
        if token in self.revoked or not shared or claims["exp"] < time.time():
            return {"authenticated": False, "error": "no"}
        extra = {}
        if "kubernetes.io" in claims:
            pod = claims["kubernetes.io"]["pod"]
            extra = {
                "authentication.kubernetes.io/pod-name": [pod["name"]],
                "authentication.kubernetes.io/pod-uid": [pod["uid"]],
            }
        user = {"username": claims["sub"], "uid": "u", "groups": [], "extra": extra}
        return {"authenticated": True, "audiences": shared, "user": user}
