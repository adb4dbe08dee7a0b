"""Full lists of every watched kind: at the start, and every ten minutes.

They find deletions that a broken watch passed over, and kinds that came or went.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog

from weir_operator.cluster.api import ClusterApi
from weir_operator.cluster.errors import (
    ClusterError,
    ForbiddenError,
    NotFoundError,
    UnreachableError,
)
from weir_operator.cluster.store import POD, ObjectStore, went_back
from weir_operator.cluster.watch import Watched
from weir_operator.metrics import OperatorMetrics
from weir_operator.planning.kinds import (
    BATCH_JOB,
    CHILD_KINDS,
    LLM_SERVICE,
    SERVICE_LABEL,
    Kind,
)

log = structlog.get_logger(__name__)

REQUIRED = (
    Watched(kind=LLM_SERVICE),
    Watched(kind=BATCH_JOB),
    Watched(kind=POD, label=SERVICE_LABEL),
    *(Watched(kind=kind, label=SERVICE_LABEL) for kind in CHILD_KINDS if not kind.optional),
)
OPTIONAL = tuple(Watched(kind=kind, label=SERVICE_LABEL) for kind in CHILD_KINDS if kind.optional)


class CrdsMissingError(ClusterError):
    """The API server does not serve Weir's own kinds."""


class Resync:
    """Lists into the store."""

    def __init__(
        self,
        api: ClusterApi,
        store: ObjectStore,
        *,
        namespaces: Sequence[str],
        metrics: OperatorMetrics,
    ) -> None:
        """``namespaces``: those acted on; none means all."""
        self._api = api
        self._store = store
        self._namespaces = tuple(namespaces)
        self._metrics = metrics

    async def kinds(self) -> tuple[Watched, ...]:
        """What can be watched on this cluster now.

        Raises:
            CrdsMissingError: Weir's own kinds are not served.
            ClusterError: the API server does not answer.
        """
        for kind in (LLM_SERVICE, BATCH_JOB):
            if not await self._api.has_kind(kind):
                raise CrdsMissingError(
                    f"the cluster has no kind {kind.kind}: apply Weir's CRDs (crds/)"
                )
        found = [watched for watched in OPTIONAL if await self._api.has_kind(watched.kind)]
        return (*REQUIRED, *found)

    async def list_all(self, watched: Sequence[Watched]) -> ClusterError | None:
        """Lists every kind and takes the lists over; why the first that has none could not be.

        The store keeps what it had of a kind that is forbidden, throttled or cannot be read.

        Raises:
            UnreachableError: no answer, which the other kinds would not get either.
            NotFoundError: a kind of Weir's own is not served any more.
        """
        outcome, refused = "failed", None
        try:
            for one in watched:
                try:
                    await self._list(one)
                except (UnreachableError, NotFoundError):
                    raise
                except ClusterError as error:
                    refused = refused or error
            if refused is None:
                outcome = "done"
            elif isinstance(refused, ForbiddenError):
                outcome = "forbidden"
        finally:
            self._metrics.resyncs.labels(outcome).inc()
        gone = {one.kind for one in OPTIONAL} - {one.kind for one in watched}
        for kind in gone:
            self._store.forget(kind)
        self.count(watched)
        return refused

    def count(self, watched: Sequence[Watched]) -> None:
        """Takes the numbers of objects into the metrics."""
        for one in watched:
            self._metrics.objects.labels(one.kind.kind).set(self._store.count(one.kind))

    async def _list(self, watched: Watched) -> None:
        lists, newest = [], self._store.newest(watched.kind)
        for namespace in self._namespaces or (None,):
            try:
                lists.append(
                    await self._api.list(
                        watched.kind,
                        namespace=namespace,
                        label=watched.label,
                        keep=partial(self._store.shared, watched.kind),
                    )
                )
            except NotFoundError:
                if watched.kind.optional:
                    return
                raise
        items = [item for one in lists for item in one.items]
        oldest = min((one.resource_version for one in lists), key=_number)
        if went_back(oldest, newest=newest):
            log.warning("resync.versions_went_back", kind=watched.kind.kind, version=oldest)
        lost = self._store.replace(watched.kind, items, oldest, newest=newest)
        if lost:
            log.warning("resync.missed_deletions", kind=watched.kind.kind, count=len(lost))


def optional_kinds(watched: Sequence[Watched]) -> frozenset[str]:
    """The names of the optional kinds among them."""
    return frozenset(one.kind.kind for one in watched if one.kind.optional)


def kinds_of(watched: Sequence[Watched]) -> frozenset[Kind]:
    """The kinds among them."""
    return frozenset(one.kind for one in watched)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
