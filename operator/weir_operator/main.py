"""`weir serve operator`: one replica, from its settings to its end.

The elector, the probes, the queue and all clients run in the main loop; kopf watches in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from random import Random
from typing import Any

import structlog

from weir_operator.assembly import Parts, assemble
from weir_operator.cluster.connection import ConnectionSettingsError, configuration
from weir_operator.cluster.errors import ClusterError, ForbiddenError, NotFoundError
from weir_operator.cluster.resync import CrdsMissingError, kinds_of, optional_kinds
from weir_operator.cluster.watch import Watched, WatchThread, quiet_kopf
from weir_operator.control_plane.progress import Progress
from weir_operator.logs import configure_logging, log_loop_errors
from weir_operator.planning.kinds import Kind
from weir_operator.planning.types import Manifest
from weir_operator.probes import ProbeServer
from weir_operator.settings import OperatorSettings
from weir_operator.workqueue import WorkQueue

log = structlog.get_logger(__name__)

EXIT_USAGE = 2
WAIT_FIRST_S = 0.5
WAIT_MOST_S = 5.0
LIST_AGAIN_S = 60.0
"""How soon everything is listed again where a kind may not be, goes on not to be, or was watched in
vain once more."""
FIRST_ANSWER_S = 5.0
"""How long the first reconciles wait for the control plane's first answer at most."""


def run(settings: OperatorSettings) -> None:
    """Runs an operator until it is asked to stop; ends the process with its exit status.

    Raises:
        SystemExit: 0 after an orderly end, 2 for a wrong setting. A leader that lost its Lease
            ends the process with 70 without returning here.
    """
    configure_logging(settings.log_level)
    quiet_kopf()
    try:
        asyncio.run(_main(settings))
    except ConnectionSettingsError as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(
            f"{settings.host}:{settings.port}: {error.strerror} "
            "(set WEIR_OPERATOR_HOST, WEIR_OPERATOR_PORT)"
        )
    raise SystemExit(0)


async def _main(settings: OperatorSettings) -> None:
    parts = assemble(settings, await configuration(settings.kubeconfig))
    operator = Operator(parts)
    loop = asyncio.get_running_loop()
    log_loop_errors(loop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, operator.stop)
    await operator.run()


class Operator:
    """One replica: a standby until it holds the Lease, then the one who acts."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._stopping = asyncio.Event()
        self._synced = asyncio.Event()
        self._look_now = asyncio.Event()
        self._waits_for = "the API server has not been reached yet"
        self._blind: str | None = None  # what may not, or cannot, be listed any more
        self._watch: WatchThread | None = None
        self._watched: tuple[Watched, ...] = ()
        self._watching = False
        self._kinds_went = False  # the watches that run may lack them, now that they are back
        self._ended_at_s = float("-inf")  # the last end of watches that was looked into
        self._probes = ProbeServer(
            registry=parts.metrics.registry, unhealthy=self.unhealthy, unready=self.unready
        )
        self.port = 0

    def stop(self) -> None:
        """Asks for an orderly end."""
        self._stopping.set()

    def unhealthy(self) -> str | None:
        """Why the process should be restarted: it answers, so it need not be."""
        return None

    def unready(self) -> str | None:
        """Why it cannot take over. A standby that has seen everything is ready."""
        if not self._synced.is_set():
            return self._waits_for
        return self._blind or (None if self._watching else "watches are down")

    async def run(self) -> None:
        """Runs until `stop`.

        Raises:
            OSError: the address of the probes cannot be listened on.
        """
        parts = self._parts
        settings = parts.settings
        self.port = await self._probes.start(settings.host, settings.port)
        log.info("operator.started", identity=parts.elector.identity, port=self.port)
        parts.watchdog.start()
        tasks = [
            asyncio.create_task(self._campaign(), name="elector"),
            asyncio.create_task(self._observe(), name="observe"),
            asyncio.create_task(self._act(), name="act"),
        ]
        stopping = asyncio.create_task(self._stopping.wait(), name="stop")
        try:
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # a defect ends the process: a restart begins from the truth
        finally:
            await self._end([stopping, *tasks])

    async def _end(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        parts = self._parts
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await parts.elector.release()
        parts.watchdog.stop()
        if self._watch is not None:
            await self._watch.stop()
        await self._probes.close()
        await parts.http.aclose()
        for client in parts.clients:
            await client.close()  # type: ignore[no-untyped-call]
        log.info("operator.stopped")

    async def _campaign(self) -> None:
        """Only who has seen everything stands for the Lease: another holder could not act."""
        await self._synced.wait()
        await self._parts.elector.run()

    async def _act(self) -> None:
        """Waits for the Lease, then works.

        What a standby has seen may be old: a dead watch shows only after a minute. So everything is
        listed anew, while work begins with what is known.
        """
        await self._parts.elector.leading.wait()
        self._look_now.set()
        self._parts.enqueue_all()
        await act(self._parts.queue, self._parts.progress)

    async def _observe(self) -> None:
        """Watches and lists; an API server that does not answer is waited for."""
        settings = self._parts.settings
        random = Random()  # noqa: S311 - jitter
        pause_s, soon_s = WAIT_FIRST_S, WAIT_MOST_S
        while True:
            try:
                refused = await self._look()
            except ClusterError as error:
                self._waits_for = str(error)
                if isinstance(error, NotFoundError | CrdsMissingError):
                    self._kinds_went = True
                if self._kinds_went or isinstance(error, ForbiddenError):  # no outage, which passes
                    self._blind = str(error)
                log.warning("cluster.waits", reason=str(error))
                await asyncio.sleep(random.uniform(pause_s / 2, pause_s))
                pause_s = min(WAIT_MOST_S, pause_s * 2)
            else:
                pause_s, again_s, self._blind = WAIT_FIRST_S, settings.resync_s, None
                if refused is not None:
                    self._blind, again_s = str(refused), min(again_s, LIST_AGAIN_S)
                    log.warning("cluster.blind", reason=self._blind)
                if refused is None or isinstance(refused, ForbiddenError):
                    soon_s = WAIT_MOST_S
                else:  # mostly an API server that starts; else its lists are not made dearer
                    again_s, soon_s = min(again_s, soon_s), min(LIST_AGAIN_S, soon_s * 2)
                await self._until_due(again_s * random.uniform(0.9, 1.0))

    async def _until_due(self, delay_s: float) -> None:
        """Waits for the next full list; taking over brings it forward."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._look_now.wait()
        self._look_now.clear()

    async def _look(self) -> ClusterError | None:
        """One probe of the kinds and one full list of each; why one could not be listed any more.

        Raises:
            ClusterError: no list of everything, and at the start one that is forbidden.
        """
        parts = self._parts
        watched = await parts.resync.kinds()
        known = kinds_of(watched) == kinds_of(self._watched)
        if self._watch is None or self._kinds_went or not known:
            await self._watch_these(watched)
            self._kinds_went = False
        refused = await parts.resync.list_all(watched)
        if refused is not None and not self._synced.is_set():
            raise refused  # who has not seen everything once would take the rest for gone
        parts.observer.optional_kinds = optional_kinds(watched)
        if self._synced.is_set():
            parts.requests.forget_sent()
            parts.enqueue_all()
        else:
            log.info("operator.synced", kinds=len(watched))
        self._synced.set()
        parts.metrics.synced.set(1)
        return refused

    async def _watch_these(self, watched: tuple[Watched, ...]) -> None:
        parts = self._parts
        if self._watch is not None:
            await self._watch.stop()
            self._set_watching(up=False)
        self._watched = watched
        self._watch = WatchThread(
            parts.configuration,
            watched,
            self,
            namespaces=parts.settings.namespaces,
            identity=parts.elector.identity,
            random=Random(),  # noqa: S311 - jitter
        )
        self._watch.start()

    def watching(self) -> None:
        """Watches run."""
        self._set_watching(up=True)

    def watches_ended(self) -> None:
        """Watches have ended; they start again. Perhaps a kind is not served any more."""
        self._set_watching(up=False)
        now_s = asyncio.get_running_loop().time()
        if now_s - self._ended_at_s >= LIST_AGAIN_S:
            self._ended_at_s = now_s
            self._look_now.set()

    def _set_watching(self, *, up: bool) -> None:
        self._watching = up
        self._parts.metrics.watch_up.set(up)

    def observed(self, kind: Kind, event: str | None, item: Manifest) -> None:
        """An event of a watch."""
        store = self._parts.store
        if event == "DELETED":
            store.gone(kind, item)
        else:
            store.seen(kind, item)
        self._parts.metrics.objects.labels(kind.kind).set(store.count(kind))


async def act(queue: WorkQueue, progress: Progress) -> None:
    """Looks at the control plane and reconciles until cancelled.

    Reconciles wait for the first look: until it was asked nobody knows whether it is there, and
    statuses would say of every object that it is not.
    """
    async with asyncio.TaskGroup() as group:
        group.create_task(progress.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ANSWER_S):
                await progress.asked.wait()
        group.create_task(queue.run())


def _refuse(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201 - the last word of a command
    raise SystemExit(EXIT_USAGE)
