"""Kopf, which only watches: events of every kind are handed to the store's loop.

Runs in a thread with a loop and a registry of its own, so that a slow handler or client cannot
starve the elector. Without change handlers, timers and daemons kopf writes nothing at all.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import kopf
import structlog
from kubernetes.aio.client import Configuration

from weir_operator.cluster.connection import kopf_login
from weir_operator.planning.kinds import Kind
from weir_operator.planning.types import Manifest

log = structlog.get_logger(__name__)

STOP_WITHIN_S = 5.0
MOST_BACKOFF_S = 2.0
RESTART_S = 2.0
ASKED_S = 0.1
TOLD_FROM_TRY = 3
"""An API server that starts refuses the first tries, and the pauses before them are short."""


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A kind to watch, and the label that its objects must carry; None: all of them."""

    kind: Kind
    label: str | None = None


class Listener(Protocol):
    """Hears of everything in its own loop."""

    def observed(self, kind: Kind, event: str | None, item: Manifest) -> None:
        """An event; its type is None while a list is read."""
        ...

    def watching(self) -> None:
        """Watches run."""
        ...

    def watches_ended(self) -> None:
        """Watches have ended; they start again."""
        ...


class EndlessBackoff:
    """Pauses between tries of a watch: it never gives up, and never waits longer than 2 s."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def __iter__(self) -> Iterator[float]:
        ceiling_s = 0.25
        while True:
            yield self._random.uniform(0.0, ceiling_s)
            ceiling_s = min(MOST_BACKOFF_S, ceiling_s * 2)


class WatchThread:
    """Watches a fixed set of kinds until it is stopped; starts again when kopf ends."""

    def __init__(
        self,
        configuration: Configuration,
        watched: Sequence[Watched],
        listener: Listener,
        *,
        namespaces: Sequence[str],
        identity: str,
        random: Random,
    ) -> None:
        """Needs the running loop of ``listener``."""
        self._configuration = configuration
        self._watched = tuple(watched)
        self._listener = listener
        self._namespaces = tuple(namespaces)
        self._loop = asyncio.get_running_loop()
        self._identity = identity
        self._random = random
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        """Starts watching."""
        self._thread.start()

    async def stop(self) -> None:
        """Stops watching, or leaves the thread behind when it hangs; it is not heard of again."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, STOP_WITHIN_S)
        if self._thread.is_alive():
            log.warning("watch.hangs", remedy="none needed: its events are ignored")

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                asyncio.run(self._watch())
            except Exception as error:  # noqa: BLE001 - the top of a thread: watch again
                log.error("watch.failed", reason=f"{type(error).__name__}: {error}")  # noqa: TRY400
            self._tell(self._listener.watches_ended)
            self._stop.wait(RESTART_S)

    async def _watch(self) -> None:
        # Kopf would wait for the thread's own flag in another thread, and one that fails would not
        # end before that is set: nothing would be watched, and nobody told.
        stop = asyncio.Event()
        asking = asyncio.create_task(self._ask_to_stop(stop))
        try:
            await kopf.operator(
                registry=self._registry(),
                settings=self._settings(),
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                standalone=True,
                identity=self._identity,  # type: ignore[arg-type] # else kopf asks for a user name
                stop_flag=stop,
            )
        finally:
            asking.cancel()

    async def _ask_to_stop(self, stop: asyncio.Event) -> None:
        while not self._stop.is_set():  # noqa: ASYNC110 - it is another thread's
            await asyncio.sleep(ASKED_S)
        stop.set()

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.startup(registry=registry)
        async def started(**_: object) -> None:
            self._tell(self._listener.watching)

        @kopf.on.login(registry=registry)
        async def login(**_: object) -> kopf.ConnectionInfo:
            return await kopf_login(self._configuration)

        for watched in self._watched:
            self._listen(registry, watched.kind)
        return registry

    def _listen(self, registry: kopf.OperatorRegistry, kind: Kind) -> None:
        @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)
        async def observed(event: Any, **_: object) -> None:  # noqa: ANN401 - kopf's raw event
            if not self._stop.is_set():
                item = dict(event["object"])
                item.setdefault("apiVersion", kind.api_version)
                item.setdefault("kind", kind.kind)
                self._tell(self._listener.observed, kind, event["type"], item)

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        # One that hangs and is replaced must not say of its end what holds of its successor.
        if not self._stop.is_set() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.peering.standalone = True
        settings.process.ultimate_exiting_timeout = None
        settings.networking.error_backoffs = EndlessBackoff(self._random)
        settings.networking.connect_timeout = 5.0
        settings.networking.request_timeout = 60.0
        settings.queueing.idle_timeout = 1.0
        settings.queueing.exit_timeout = 0.5
        settings.watching.server_timeout = 300  # sent as it is: the API wants an integer
        settings.watching.chunk_size = 500
        for watched in self._watched:
            if watched.label is not None:
                kind = watched.kind
                settings.watching.label_selectors[kind.group, kind.version, kind.plural] = (
                    watched.label
                )
        return settings


class RepeatedTries(logging.Filter):
    """Kopf calls each try of a watch that fails an error: one that goes on failing is a warning."""

    _TOLD = re.compile(r"Request attempt #(\d+)\S* failed; will retry")

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is worth a line; it may have become a warning."""
        found = self._TOLD.match(record.getMessage())
        if found is None:
            return True
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return int(found[1]) >= TOLD_FROM_TRY


def quiet_kopf() -> None:
    """Kopf speaks of every event at INFO; what it complains of stays."""
    for name in ("kopf", "kopf.objects", "kopf.activities"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It warns that it takes no signals in a thread: the main loop takes them.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    for name in ("fetching", "watching"):
        logging.getLogger(f"kopf._cogs.clients.{name}").addFilter(RepeatedTries())
