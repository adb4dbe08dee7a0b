"""One look at everything the control plane knows, every few seconds; and what is orphaned there.

A batch is orphaned when the control plane knows it and a list of BatchJobs that was asked for
*later* does not have it: our own store may lag behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import structlog

from weir_operator.backoff import Clock
from weir_operator.cluster.api import ClusterApi
from weir_operator.cluster.errors import ClusterError
from weir_operator.cluster.store import POD, ObjectStore
from weir_operator.control_plane.client import (
    ControlPlaneClient,
    ControlPlaneError,
    HeardJob,
    HeardService,
)
from weir_operator.control_plane.reports import ReportBook
from weir_operator.leader.elector import NotLeaderError
from weir_operator.metrics import OperatorMetrics
from weir_operator.planning.job_context import ENDED, UNCANCELLED
from weir_operator.planning.kinds import BATCH_JOB, LLM_SERVICE, Kind
from weir_operator.planning.types import (
    CancelBatch,
    ControlPlaneRequest,
    ForgetBatch,
    Manifest,
    PodIdentity,
    RegisterPods,
    ReleaseService,
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often to look, and at whose objects. ``namespaces``: none means all."""

    interval_s: float
    namespaces: Sequence[str]
    clock: Clock
    random: Random


class Progress:
    """The leader's loop over the control plane."""

    def __init__(
        self,
        client: ControlPlaneClient,
        reports: ReportBook,
        store: ObjectStore,
        api: ClusterApi,
        *,
        pace: Pace,
        metrics: OperatorMetrics,
    ) -> None:
        self._client = client
        self._reports = reports
        self._store = store
        self._api = api
        self._namespaces = tuple(pace.namespaces)
        self._interval_s = pace.interval_s
        self._clock = pace.clock
        self._random = pace.random
        self._metrics = metrics
        self.asked = asyncio.Event()  # set once there was an answer, or was none

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._interval_s * self._random.uniform(0.8, 1.0))

    async def look(self) -> None:
        """One bulk read, then the orphans."""
        asked_at_s = self._clock()
        try:
            jobs, services = await self._client.jobs(), await self._client.services()
        except ControlPlaneError as error:
            self._note_reached(answered=False, reason=str(error), complaint=error.complaint)
            self.asked.set()
            return
        jobs = [job for job in jobs if self._ours(job.namespace)]
        services = [service for service in services if self._ours(service.namespace)]
        self._note_reached(answered=True)
        self._reports.heard_all(jobs, services, asked_at_s=asked_at_s)
        self.asked.set()
        try:
            await self._end_orphans(jobs)
            await self._release_services(services)
        except ControlPlaneError as error:
            log.warning("orphans.later", reason=str(error))
        except ClusterError as error:
            log.warning("orphans.no_list", reason=str(error))
        except NotLeaderError:
            return

    def _note_reached(
        self, *, answered: bool, reason: str = "", complaint: str | None = None
    ) -> None:
        """Says it once when the control plane comes or goes, or gives another reason."""
        self._metrics.control_plane_up.set(float(answered))
        if self._reports.reach(answered=answered, complaint=complaint):
            if answered:
                log.info("control_plane.reached")
            else:
                log.warning("control_plane.lost", reason=reason)

    def _ours(self, namespace: str) -> bool:
        return not self._namespaces or namespace in self._namespaces

    async def _end_orphans(self, jobs: Sequence[HeardJob]) -> None:
        known = {str(job["metadata"]["uid"]) for job in self._store.all(BATCH_JOB)}
        suspects = [job for job in jobs if job.uid not in known and _to_end(job)]
        if not suspects:
            return
        live = {str(job["metadata"]["uid"]) for job in await self._list(BATCH_JOB)}
        for job in suspects:
            if job.uid in live:
                continue
            try:
                await self._end_orphan(job)
            except ControlPlaneError as error:
                if not error.refused:  # nor would it answer for the others now
                    raise
                log.warning("orphan.refused", uid=job.uid, reason=str(error))

    async def _list(self, kind: Kind) -> list[Manifest]:
        """The metadata of every object of a kind that there is now."""
        found: list[Manifest] = []
        for namespace in self._namespaces or (None,):
            found += (await self._api.list(kind, namespace=namespace, keep=_identity)).items
        return found

    async def _end_orphan(self, job: HeardJob) -> None:
        if job.report.status in ENDED:
            await self._client.perform(ForgetBatch(uid=job.uid))
            self._reports.forget_job(job.uid)
            return
        await self._client.perform(CancelBatch(uid=job.uid))
        self._metrics.orphans_cancelled.inc()
        log.info("orphan.cancelled", uid=job.uid, namespace=job.namespace, name=job.name)

    async def _release_services(self, services: Sequence[HeardService]) -> None:
        """Of an LLMService that is gone the pods that still end are kept, then it is released."""
        suspects = [
            service
            for service in services
            if self._store.get(LLM_SERVICE, service.namespace, service.name) is None
        ]
        if not suspects:
            return
        live = {
            (str(item["metadata"]["namespace"]), str(item["metadata"]["name"]))
            for item in await self._list(LLM_SERVICE)
        }
        for service in suspects:
            if (service.namespace, service.name) not in live:
                await self._release(service)

    async def _release(self, service: HeardService) -> None:
        pods = self._store.of_service(POD, service.namespace, service.name)
        left = {str(pod["metadata"]["uid"]): str(pod["metadata"]["name"]) for pod in pods}
        if left and left.keys() == {pod.uid for pod in service.report.pods}:
            return
        await self._client.perform(_remaining(service, left))
        if not left:
            self._reports.forget_service(service.namespace, service.name)
            log.info("service.released", namespace=service.namespace, name=service.name)


def _to_end(orphan: HeardJob) -> bool:
    """Whether it does not end by itself."""
    return orphan.report.status not in {"cancelling", *UNCANCELLED}


def _identity(item: Manifest) -> Manifest:
    return {"metadata": {name: item["metadata"][name] for name in ("namespace", "name", "uid")}}


def _remaining(service: HeardService, left: dict[str, str]) -> ControlPlaneRequest:
    if not left:
        return ReleaseService(namespace=service.namespace, name=service.name)
    return RegisterPods(
        namespace=service.namespace,
        name=service.name,
        model=service.report.model or service.name,
        service_account=service.report.service_account,
        pods=tuple(PodIdentity(uid=uid, name=name) for uid, name in sorted(left.items())),
    )
