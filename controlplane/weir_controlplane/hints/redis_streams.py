"""Hints over one Redis stream: every replica reads every hint from where it stands.

The stream is trimmed. A Redis that is away, flushed or lagging is logged once and waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from weir_controlplane.services import LocalNudge

STREAM = "weir:hints"
KEPT_HINTS = 1000
BLOCK_MS = 2000
RETRY_S = 2.0
SEND_TIMEOUT_S = 0.5
_log = structlog.get_logger(__name__)


class RedisNudge:
    """`Nudge` over Redis Streams; run `listen` beside it, or only this replica's hints arrive.

    Hints of this replica wake this replica at once, without the round trip.
    """

    def __init__(self, url: str) -> None:
        self._redis: Redis = Redis.from_url(
            url, socket_connect_timeout=1.0, socket_timeout=BLOCK_MS / 1000 + 3.0
        )
        self._local = LocalNudge()
        self._away = False
        self._connected = asyncio.Event()

    async def send(self, topic: str) -> None:
        """Wakes whoever waits for ``topic`` in any replica. Never raises."""
        await self._local.send(topic)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._redis.xadd(
                    STREAM, {"topic": topic}, maxlen=KEPT_HINTS, approximate=True
                )
        except (RedisError, OSError, TimeoutError) as error:
            self._say_away(error)
        else:
            self._away = False

    async def wait(self, topic: str, timeout_s: float) -> None:
        """Returns on the next hint for ``topic``, or after ``timeout_s`` at the latest."""
        await self._local.wait(topic, timeout_s)

    async def listen(self) -> None:
        """Passes on the hints of the other replicas, for ever."""
        last = ""
        while True:
            try:
                last = last or await self._end()
                self._connected.set()
                found: Any = await self._redis.xread({STREAM: last}, count=100, block=BLOCK_MS)
            except (RedisError, OSError, TimeoutError) as error:
                self._say_away(error)
                last = ""  # whatever was missed, the next poll finds
                await asyncio.sleep(random.uniform(0, RETRY_S))  # noqa: S311
                continue
            for _, entries in found or ():
                for number, fields in entries:
                    last = number
                    topic = fields.get(b"topic", b"").decode(errors="replace")
                    await self._local.send(topic)

    async def connected(self) -> None:
        """Returns when `listen` hears hints for the first time."""
        await self._connected.wait()

    async def _end(self) -> str:
        """The number of the newest hint: from there on nothing is missed between reads."""
        newest: Any = await self._redis.xrevrange(STREAM, count=1)
        return newest[0][0].decode() if newest else "0-0"

    async def close(self) -> None:
        """Closes the connections."""
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose()

    def _say_away(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            _log.warning("hints_unavailable", error=type(error).__name__)
