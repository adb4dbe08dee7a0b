"""Puts one operator together: constructors only. `main` runs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import httpx
from kubernetes.aio.client import ApiClient, Configuration

from weir_operator.cluster.api import ApiLeaseStore, ClusterApi
from weir_operator.cluster.connection import client as api_client
from weir_operator.cluster.resync import Resync
from weir_operator.cluster.store import ObjectStore
from weir_operator.cluster.writer import Writer
from weir_operator.control_plane.client import ControlPlaneClient, TokenFile
from weir_operator.control_plane.progress import Pace, Progress
from weir_operator.control_plane.reports import ReportBook
from weir_operator.leader.elector import Elector, Terms
from weir_operator.leader.watchdog import Watchdog, end_process
from weir_operator.metrics import OperatorMetrics
from weir_operator.planning.types import ObjectKey
from weir_operator.reconcile.children import Children
from weir_operator.reconcile.execute import Executor
from weir_operator.reconcile.gate import StatusGate
from weir_operator.reconcile.observe import Observer, ObserverTerms
from weir_operator.reconcile.reconciler import Reconciler
from weir_operator.reconcile.requests import Requests
from weir_operator.settings import OperatorSettings
from weir_operator.workqueue import QueueTerms, WorkQueue

CONTROL_PLANE_CONNECTIONS = 16


@dataclass(frozen=True, kw_only=True)
class Parts:
    """An operator's parts, joined, nothing started.

    ``enqueue_all`` has a leader look at every object of users; a standby it does nothing for.
    """

    settings: OperatorSettings
    metrics: OperatorMetrics
    configuration: Configuration
    clients: tuple[ApiClient, ...]
    http: httpx.AsyncClient
    elector: Elector
    watchdog: Watchdog
    store: ObjectStore
    queue: WorkQueue
    enqueue_all: Callable[[], None]
    resync: Resync
    writer: Writer
    observer: Observer
    requests: Requests
    progress: Progress


class _Late:
    """A queue for parts that are made before it.

    A standby queues nothing: who takes over looks at every object anyway, and would have to come
    through all that went by in between first.
    """

    def __init__(self, leading: asyncio.Event) -> None:
        self._leading = leading
        self.queue: WorkQueue | None = None

    def enqueue(self, key: ObjectKey) -> None:
        """Has an object reconciled, where this replica is the one who does it."""
        if self.queue is not None and self._leading.is_set():
            self.queue.add(key)


def assemble(settings: OperatorSettings, configuration: Configuration) -> Parts:
    """Joins an operator's parts; needs a running loop."""
    clock, random, metrics = time.monotonic, Random(), OperatorMetrics()  # noqa: S311 - jitter
    lease_client = api_client(configuration, user_agent=settings.user_agent)
    main_client = api_client(configuration, user_agent=settings.user_agent)
    elector = _elector(settings, lease_client, metrics, random)
    api = _api(settings, main_client, elector, metrics)
    http = _http(settings)
    control_plane = ControlPlaneClient(http, metrics=metrics, random=random)
    late = _Late(elector.leading)
    store = ObjectStore(late.enqueue)

    def enqueue_all() -> None:
        for key in store.user_keys():
            late.enqueue(key)

    reports = ReportBook(late.enqueue, on_reached=enqueue_all, clock=clock)
    writer = Writer(api, store, metrics=metrics, instance=settings.pod_name)
    terms = ObserverTerms(
        defaults=settings.defaults(), finalizer_deadline_s=settings.finalizer_deadline_s
    )
    observer = Observer(store, reports, api, control_plane, terms=terms, clock=clock)
    pace = _pace(settings, random)
    progress = Progress(control_plane, reports, store, api, pace=pace, metrics=metrics)
    requests = Requests(control_plane, reports, clock=clock)
    children = Children(writer, reports)
    executor = Executor(children, writer, requests, reports, _gate(settings))
    reconciler = Reconciler(observer, executor, metrics=metrics)
    late.queue = queue = _queue(settings, reconciler, random)
    _measure(metrics, queue, elector)
    return Parts(
        settings=settings,
        metrics=metrics,
        configuration=configuration,
        clients=(lease_client, main_client),
        http=http,
        elector=elector,
        watchdog=Watchdog(elector.deadline_s, clock=clock),
        store=store,
        queue=queue,
        enqueue_all=enqueue_all,
        resync=Resync(api, store, namespaces=settings.namespaces, metrics=metrics),
        writer=writer,
        observer=observer,
        requests=requests,
        progress=progress,
    )


def _api(
    settings: OperatorSettings, client: ApiClient, elector: Elector, metrics: OperatorMetrics
) -> ClusterApi:
    return ClusterApi(
        client,
        check=elector.check,
        metrics=metrics,
        read_timeout_s=settings.request_timeout_s,
        write_timeout_s=settings.write_timeout_s,
    )


def _elector(
    settings: OperatorSettings, client: ApiClient, metrics: OperatorMetrics, random: Random
) -> Elector:
    """The elector, with a client of its own: calls that hang must not hold its connections."""
    terms = Terms(
        namespace=settings.lease_namespace or settings.own_namespace(),
        name=settings.lease_name,
        lease_s=settings.lease_s,
        renew_deadline_s=settings.renew_deadline_s,
        retry_s=settings.retry_s,
        request_timeout_s=settings.lease_request_timeout_s,
    )
    api = ClusterApi(
        client,
        check=lambda: None,  # the Lease is how one becomes the one who may write
        metrics=metrics,
        read_timeout_s=settings.lease_request_timeout_s,
        write_timeout_s=settings.lease_request_timeout_s,
    )
    return Elector(
        ApiLeaseStore(api, namespace=terms.namespace, name=terms.name),
        terms,
        identity=settings.identity(),
        clock=time.monotonic,
        random=random,
        on_lost=end_process,
    )


def _queue(settings: OperatorSettings, reconciler: Reconciler, random: Random) -> WorkQueue:
    terms = QueueTerms(
        workers=settings.workers,
        rate_per_s=settings.reconciles_per_s,
        backoff_first_s=settings.backoff_first_s,
        backoff_most_s=settings.backoff_most_s,
        timeout_s=settings.reconcile_timeout_s,
    )
    return WorkQueue(reconciler.reconcile, terms, clock=time.monotonic, random=random)


def _pace(settings: OperatorSettings, random: Random) -> Pace:
    return Pace(
        interval_s=settings.progress_interval_s,
        namespaces=settings.namespaces,
        clock=time.monotonic,
        random=random,
    )


def _gate(settings: OperatorSettings) -> StatusGate:
    return StatusGate(
        writes_per_s=settings.status_writes_per_s,
        interval_s=settings.status_interval_s,
        clock=time.monotonic,
    )


def _measure(metrics: OperatorMetrics, queue: WorkQueue, elector: Elector) -> None:
    metrics.queue_depth.set_function(lambda: queue.depth)
    metrics.queue_delayed.set_function(lambda: queue.delayed)
    metrics.leader.set_function(lambda: float(elector.may_write()))


def _http(settings: OperatorSettings) -> httpx.AsyncClient:
    token_file = settings.control_plane_token_file
    return httpx.AsyncClient(
        base_url=settings.control_plane_url,
        auth=TokenFile(token_file) if token_file is not None else None,
        timeout=settings.control_plane_timeout_s,
        headers={"user-agent": settings.user_agent},
        limits=httpx.Limits(max_connections=CONTROL_PLANE_CONNECTIONS),
        trust_env=False,
    )
