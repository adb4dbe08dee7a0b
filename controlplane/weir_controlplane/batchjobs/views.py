"""BatchJobs as the operator sees them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.batches.progress import Progress, progress_of
from weir_controlplane.batches.states import TERMINAL, Status
from weir_controlplane.batchjobs.schemas import (
    BatchJobView,
    DeliveryState,
    JobDelivery,
    JobStatus,
    RequestCounts,
)
from weir_controlplane.eta.outlook import BatchOutlook
from weir_controlplane.links.signer import Link
from weir_controlplane.services import Services
from weir_controlplane.store.database import clock_s
from weir_controlplane.store.kubernetes_models import BatchJob
from weir_controlplane.store.models import Batch

OUTPUT_NAME, ERROR_NAME = "output.jsonl", "errors.jsonl"
DELIVERED = (Status.COMPLETED, Status.EXPIRED, Status.CANCELLED)  # what failed seldom has files


async def job_views(
    services: Services,
    session: AsyncSession,
    jobs: Sequence[BatchJob],
    *,
    differing: Collection[str] = (),
) -> list[BatchJobView]:
    """The jobs; ``differing`` are the uids of those whose last PUT asked for something else."""
    now_s = await clock_s(session)
    ids = [job.batch_id for job in jobs if job.batch_id is not None]
    batches: dict[str, Batch] = {}
    if ids:
        found = await session.execute(select(Batch).where(Batch.id.in_(ids)))
        batches = {batch.id: batch for batch in found.scalars()}
    progress = await progress_of(session, list(batches.values()))
    views = []
    for job in jobs:
        batch = batches.get(job.batch_id or "")
        done = Progress() if batch is None else progress[batch.id]
        view = _View(services, now_s, job, batch)
        views.append(view.view(done, input_matches=job.uid not in differing))
    return views


class _View:
    def __init__(
        self, services: Services, now_s: float, job: BatchJob, batch: Batch | None
    ) -> None:
        self._services = services
        self._now_s = now_s
        self._job = job
        self._batch = batch

    def view(self, done: Progress, *, input_matches: bool) -> BatchJobView:
        job, batch = self._job, self._batch
        outlook = self._outlook()
        ended_at = self._ended_at()
        links = self._links()
        return BatchJobView(
            uid=job.uid,
            namespace=job.namespace,
            name=job.name,
            batch_id=job.batch_id,
            status=self._status(),
            suspended=job.suspended,
            input_matches=input_matches,
            model=job.model or (batch.model if batch else None),
            request_counts=RequestCounts(
                total=batch.total_lines if batch else 0,
                completed=done.completed_lines,
                failed=done.failed_lines,
            ),
            created_at=batch.created_at if batch else job.created_at,
            in_progress_at=batch.in_progress_at if batch else None,
            expires_at=batch.expires_at if batch else None,
            ended_at=ended_at,
            deadline_at=job.deadline_at,
            eta_at=None if outlook is None else outlook.eta_at,
            predicted_miss=self._predicted_miss(outlook, ended_at),
            waiting_reason=self._waiting_reason(outlook),
            waiting_message=job.work_message if self._is_pending() else None,
            errors=self._errors(),
            output_file_id=batch.output_file_id if batch else None,
            error_file_id=batch.error_file_id if batch else None,
            output_link=links["output"].url if "output" in links else None,
            error_link=links["error"].url if "error" in links else None,
            links_expire_at=min((link.expires_at for link in links.values()), default=None),
            delivery=self._delivery(),
        )

    def _status(self) -> JobStatus:
        job, batch = self._job, self._batch
        if batch is None:
            if job.errors is not None:
                return "failed"
            if job.ended_at is not None:
                return "cancelled"
            return "suspended" if job.suspended else "pending"
        delivered = batch.status in DELIVERED or batch.error_file_id is not None
        if delivered and job.delivery == "pending":
            return "delivering"
        return cast("JobStatus", str(batch.status))

    def _ended_at(self) -> float | None:
        batch = self._batch
        if batch is None:
            return self._job.ended_at
        if batch.status not in TERMINAL:
            return None
        return cast("float | None", getattr(batch, f"{batch.status}_at"))

    def _outlook(self) -> BatchOutlook | None:
        batch = self._batch
        if batch is None or batch.status in TERMINAL or self._job.suspended:
            return None
        return self._services.outlook.of(batch.id)

    def _predicted_miss(self, outlook: BatchOutlook | None, ended_at: float | None) -> bool:
        batch = self._batch
        deadline_at = self._job.deadline_at or (batch.expires_at if batch else None)
        if deadline_at is None or self._status() in {"failed", "cancelled"}:
            return False
        expected_at = ended_at
        if expected_at is None and outlook is not None:
            expected_at = outlook.end_at
        return (self._now_s if expected_at is None else expected_at) > deadline_at

    def _is_pending(self) -> bool:
        return self._batch is None and self._status() == "pending"

    def _waiting_reason(self, outlook: BatchOutlook | None) -> str | None:
        if self._is_pending():
            return self._job.work_error
        return None if outlook is None else outlook.waiting_reason

    def _errors(self) -> list[dict[str, Any]]:
        found = self._batch.errors if self._batch is not None else self._job.errors
        return list(found or ())

    def _links(self) -> dict[str, Link]:
        if self._batch is None:
            return {}
        files = {"output": self._batch.output_file_id, "error": self._batch.error_file_id}
        links = self._services.links
        return {kind: links.link(file, self._now_s) for kind, file in files.items() if file}

    def _delivery(self) -> JobDelivery:
        job, batch = self._job, self._batch
        root = (job.output_uri or "").rstrip("/")
        files = {}
        if job.delivery == "done" and batch is not None:
            files = {OUTPUT_NAME: batch.output_file_id, ERROR_NAME: batch.error_file_id}
        uris = {name: f"{root}/{name}" for name, file_id in files.items() if file_id}
        return JobDelivery(
            state=cast("DeliveryState", job.delivery),
            output_uri=uris.get(OUTPUT_NAME),
            error_uri=uris.get(ERROR_NAME),
            message=job.delivery_message,
        )
