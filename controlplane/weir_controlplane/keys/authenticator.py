"""Checks keys against the database, remembering good ones for a moment."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from sqlalchemy import select

from weir_controlplane.keys.secret import KeySecret, Role
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database
from weir_controlplane.store.models import ApiKey

CACHE_S = 5.0
AGENT_CACHE_S = 60.0  # agents call every second, each with a key of its own
_CACHE_KEYS = 4096


@dataclass(frozen=True, kw_only=True)
class Principal:
    """The holder of a valid key or token.

    ``agent_id`` and ``service``: the only ones that an agent's may speak for; None: any.
    """

    key_id: str
    scope: Role
    tenant_id: str | None
    agent_id: str | None
    service: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Found:
    principal: Principal
    lasts_s: float


class Authenticator:
    """Checks keys. A key found good is taken as good for `CACHE_S`; a bad one is never kept.

    An agent's key is kept for `AGENT_CACHE_S`; none for longer than it lasts.

    Args:
        clock_s: a monotonic clock in seconds.
    """

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._known: OrderedDict[str, tuple[float, Principal]] = OrderedDict()
        self._looking: dict[str, asyncio.Task[_Found | None]] = {}
        self._forgotten = 0

    async def principal(self, database: Database, secret: KeySecret) -> Principal | None:
        """Whose key this is; None when unknown, revoked or expired."""
        key = secret.hash
        cached = self._known.get(key)
        if cached is not None and self._clock_s() < cached[0]:
            return cached[1]
        self._known.pop(key, None)
        looking = self._looking.get(key)
        if looking is None:
            # One look for all who ask meanwhile: a slow database must not be asked by each of them.
            looking = asyncio.create_task(self._look_up(database, secret))
            self._looking[key] = looking
            looking.add_done_callback(lambda done: self._found(key, done))
        asked_after = self._forgotten
        found = await asyncio.shield(looking)
        if found is None:
            return None
        if asked_after == self._forgotten:
            kept_s = AGENT_CACHE_S if found.principal.scope == "agent" else CACHE_S
            kept_s = min(kept_s, found.lasts_s)
            self._known[key] = (self._clock_s() + kept_s, found.principal)
            while len(self._known) > _CACHE_KEYS:
                self._known.popitem(last=False)
        return found.principal

    def _found(self, key: str, done: asyncio.Task[_Found | None]) -> None:
        if self._looking.get(key) is done:
            del self._looking[key]

    def forget(self) -> None:
        """Asks the database again for every key: after a revocation by this replica."""
        self._known.clear()
        self._looking.clear()
        self._forgotten += 1

    async def _look_up(self, database: Database, secret: KeySecret) -> _Found | None:
        statement = select(ApiKey, ApiKey.expires_at - db_now()).where(
            ApiKey.prefix == secret.prefix,
            ApiKey.revoked_at.is_(None),
            ApiKey.expires_at.is_(None) | (ApiKey.expires_at > db_now()),
        )
        async with database.read() as session:
            found = (await session.execute(statement)).one_or_none()
        if found is None or not secret.matches(found[0].hash):
            return None
        row, lasts_s = found
        principal = Principal(
            key_id=row.id,
            scope=cast("Role", row.scope),
            tenant_id=row.tenant_id,
            agent_id=row.agent_id,
        )
        return _Found(principal=principal, lasts_s=math.inf if lasts_s is None else lasts_s)
