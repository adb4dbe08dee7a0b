"""The API server's audit log: who wrote what, so that a test can tell two writers apart."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
# Metadata only: bodies would make the log large, and could hold Secrets.
POLICY: Mapping[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted", "Panic"],
    "rules": [
        {
            "level": "None",
            "resources": [
                {"group": "coordination.k8s.io", "resources": ["leases"]},
            ],
            "userGroups": ["system:nodes"],
        },
        {"level": "Metadata"},
    ],
}


_BACKWARDS_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call that the API server answered."""

    at: dt.datetime
    verb: str
    user: str
    impersonated: str | None
    user_agent: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    status: int

    @property
    def acting_user(self) -> str:
        """Whose rights the call had: the impersonated user, else the one that was authenticated."""
        return self.impersonated or self.user

    @property
    def writes(self) -> bool:
        """Whether the call could change something, and was not refused."""
        return self.verb in WRITES and self.status < 400


class AuditLog:
    """The log of one API server; a call appears in it a moment after its answer."""

    def __init__(self, path: Path) -> None:
        """``path`` is written by the API server; it need not exist yet."""
        self._path = path

    def position(self) -> int:
        """Where the last whole line ends now, in bytes; `calls` takes it to leave out older ones.

        The file's own end may lie within a line, since the server does not write a line at once.
        """
        if not self._path.exists():
            return 0
        with self._path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            while end:
                start = max(0, end - _BACKWARDS_BYTES)
                file.seek(start)
                newline = file.read(end - start).rfind(b"\n")
                if newline >= 0:
                    return start + newline + 1
                end = start
        return 0

    def calls(
        self, *, since: int = 0, namespace: str | None = None, resource: str | None = None
    ) -> list[Call]:
        """The calls after a position, those of one namespace and resource if they are given."""
        return [
            call
            for call in self._read(since)
            if namespace in (None, call.namespace) and resource in (None, call.resource)
        ]

    def writes(
        self, *, since: int = 0, namespace: str | None = None, resource: str | None = None
    ) -> list[Call]:
        """The calls that wrote something."""
        found = self.calls(since=since, namespace=namespace, resource=resource)
        return [call for call in found if call.writes]

    def _read(self, since: int) -> Iterator[Call]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(since)
            for line in file:
                if line.endswith(b"\n"):  # else the server is in the middle of it
                    yield _parse(json.loads(line))


def _parse(event: Mapping[str, Any]) -> Call:
    about: Mapping[str, str] = event.get("objectRef", {})
    return Call(
        at=dt.datetime.fromisoformat(event["requestReceivedTimestamp"]),
        verb=event["verb"],
        user=event["user"]["username"],
        impersonated=event.get("impersonatedUser", {}).get("username"),
        user_agent=event.get("userAgent", ""),
        group=about.get("apiGroup", ""),
        resource=about.get("resource", ""),
        subresource=about.get("subresource", ""),
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        status=event.get("responseStatus", {}).get("code", 0),
    )
