"""Snapshots for planning: what the store, the control plane and one look at a ConfigMap say."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from weir_operator.backoff import Clock
from weir_operator.cluster.api import ClusterApi
from weir_operator.cluster.errors import ForbiddenError, NotFoundError
from weir_operator.cluster.store import POD, ObjectStore
from weir_operator.control_plane.client import ControlPlaneClient, ControlPlaneError
from weir_operator.control_plane.reports import ReportBook
from weir_operator.planning.kinds import BATCH_JOB, CHILD_KINDS, LLM_SERVICE, Kind
from weir_operator.planning.observed import (
    ObservedBatchJob,
    ObservedLLMService,
    OperatorDefaults,
)
from weir_operator.planning.types import Manifest, ObjectKey, PutBatchJob

CONFIG_MAP = Kind(api_version="v1", kind="ConfigMap", plural="configmaps")


def child_place(key: ObjectKey) -> tuple[str, ...]:
    """Where the refusals of an object's children are kept."""
    return ("child", key.kind, key.namespace, key.name)


def job_place(key: ObjectKey, *uid: str) -> tuple[str, ...]:
    """Where the refusals of a BatchJob are kept; without uid: of it and its former namesakes."""
    return ("job", key.namespace, key.name, *uid)


def finalizer_place(key: ObjectKey, uid: str) -> tuple[str, ...]:
    """Where it is kept that a BatchJob's finalizer may not be set."""
    return (*job_place(key, uid), "Finalizer")


@dataclass(frozen=True, kw_only=True)
class ObserverTerms:
    """Settings that planning reads."""

    defaults: OperatorDefaults
    finalizer_deadline_s: float


class Observer:
    """Makes the snapshots."""

    def __init__(
        self,
        store: ObjectStore,
        reports: ReportBook,
        api: ClusterApi,
        client: ControlPlaneClient,
        *,
        terms: ObserverTerms,
        clock: Clock,
    ) -> None:
        self._store = store
        self._reports = reports
        self._api = api
        self._terms = terms
        self._client = client
        self._clock = clock
        self.optional_kinds: frozenset[str] = frozenset()

    def llmservice(self, key: ObjectKey) -> ObservedLLMService | None:
        """An LLMService and its surroundings; None when there is none."""
        service = self._store.get(LLM_SERVICE, key.namespace, key.name)
        if service is None:
            return None
        heard = self._reports.service(key.namespace, key.name)
        reached = self._reports.reached
        refusals = self._reports.refusals_under(child_place(key))
        return ObservedLLMService(
            service=service,
            children={
                (kind.kind, str(child["metadata"]["name"])): child
                for kind in CHILD_KINDS
                for child in self._store.of_service(kind, key.namespace, key.name)
            },
            pods=tuple(self._store.of_service(POD, key.namespace, key.name)),
            control_plane_reached=reached,
            control_plane_complaint=self._reports.complaint,
            report=heard.report if reached and heard is not None else None,
            slo_silence_s=self._reports.slo_silence_s(key.namespace, key.name),
            refusals={(place[0], place[1]): refusal for place, refusal in refusals.items()},
            optional_kinds=self.optional_kinds,
            defaults=self._terms.defaults,
            now=datetime.now(UTC),
        )

    async def batchjob(self, key: ObjectKey) -> ObservedBatchJob | None:
        """A BatchJob and its surroundings; None when there is none.

        Raises:
            ClusterError: its ConfigMap cannot be read.
        """
        job = self._store.get(BATCH_JOB, key.namespace, key.name)
        if job is None:
            return None
        uid = str(job["metadata"]["uid"])
        service_name = (job["spec"].get("serviceRef") or {}).get("name")
        unanswered = await self._look_again(job, uid)
        heard = self._reports.job(uid)
        config_map, forbidden = None, self._reports.refusal(finalizer_place(key, uid))
        told = None if forbidden is None else forbidden.message
        try:
            config_map = await self._config_map(job) if heard is None else None
        except ForbiddenError as error:
            told = str(error)
        return ObservedBatchJob(
            job=job,
            service=self._store.get(LLM_SERVICE, key.namespace, str(service_name)),
            config_map=config_map,
            control_plane_reached=self._reports.reached and unanswered is None,
            control_plane_complaint=self._reports.complaint
            if unanswered is None
            else unanswered.complaint,
            report=None if heard is None else heard.report,
            refusal=self._reports.refusal((*job_place(key, uid), PutBatchJob.__name__)),
            forbidden=told,
            finalizer_deadline_s=self._terms.finalizer_deadline_s,
            now=datetime.now(UTC),
        )

    async def _look_again(self, job: Manifest, uid: str) -> ControlPlaneError | None:
        """A batch that should be known and is not: no list decides that it is lost.

        The error that came in the place of an answer: nor does a refusal to say.
        """
        expected = (job.get("status") or {}).get("batchID")
        if not expected or not self._reports.reached or self._reports.job(uid) is not None:
            return None
        asked_at_s = self._clock()
        try:
            heard = await self._client.job(uid)
        except ControlPlaneError as error:
            return error
        if heard is not None:
            self._reports.heard_job(heard, asked_at_s=asked_at_s)
        return None

    async def _config_map(self, job: Manifest) -> Manifest | None:
        """The ConfigMap that the input names; read once, since the first accepted input wins."""
        named = (job["spec"].get("input") or {}).get("configMapKeyRef")
        if not named or (job.get("status") or {}).get("batchID"):
            return None
        try:
            return await self._api.get(
                CONFIG_MAP, str(job["metadata"]["namespace"]), str(named["name"])
            )
        except NotFoundError:
            return None
