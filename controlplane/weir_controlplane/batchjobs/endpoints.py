"""`/internal/v1/batchjobs`, for the operator (docs/protocol.md)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, status
from sqlalchemy import select

from weir_controlplane.batchjobs import service
from weir_controlplane.batchjobs.schemas import MAX_KNOWN, BatchJobList, BatchJobView, PutBatchJob
from weir_controlplane.batchjobs.views import job_views
from weir_controlplane.batchjobs.worker import work_on
from weir_controlplane.keys.auth import OperatorDep
from weir_controlplane.services import Services, ServicesDep
from weir_controlplane.store.kubernetes_models import BatchJob

Uid = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
router = APIRouter(prefix="/internal/v1/batchjobs")


@router.put("/{uid}")
async def put_job(
    uid: Uid, body: PutBatchJob, _operator: OperatorDep, services: ServicesDep
) -> BatchJobView:
    """Accepts a BatchJob, or suspends, resumes and re-orders one that is known."""
    accepted = await service.put_job(services, uid, body)
    if accepted.work is not None:
        await work_on(services, accepted.work)
    return await _view(services, uid, matches=accepted.matches)


@router.get("")
async def list_jobs(
    _operator: OperatorDep,
    services: ServicesDep,
    after: str = "",
    limit: Annotated[int, Query(ge=1, le=MAX_KNOWN)] = MAX_KNOWN,
) -> BatchJobList:
    """A page of all jobs, by uid."""
    statement = select(BatchJob).where(BatchJob.uid > after).order_by(BatchJob.uid)
    async with services.database.read() as session:
        found = list((await session.execute(statement.limit(limit + 1))).scalars())
        views = await job_views(services, session, found[:limit])
    return BatchJobList(
        data=views,
        last_uid=views[-1].uid if views else None,
        has_more=len(found) > limit,
    )


@router.get("/{uid}")
async def get_job(uid: Uid, _operator: OperatorDep, services: ServicesDep) -> BatchJobView:
    """One job."""
    return await _view(services, uid)


@router.post("/{uid}/cancel")
async def cancel_job(uid: Uid, _operator: OperatorDep, services: ServicesDep) -> BatchJobView:
    """Cancels a job; what is committed is kept."""
    await service.cancel_job(services, uid)
    return await _view(services, uid)


@router.delete("/{uid}", status_code=status.HTTP_204_NO_CONTENT)
async def forget_job(uid: Uid, _operator: OperatorDep, services: ServicesDep) -> None:
    """Forgets a job that has ended; safe to repeat."""
    await service.forget_job(services, uid)


async def _view(services: Services, uid: str, *, matches: bool = True) -> BatchJobView:
    async with services.database.read() as session:
        job = await session.get(BatchJob, uid)
        if job is None:
            raise service.JobNotFoundError(uid)
        views = await job_views(services, session, [job], differing=() if matches else (uid,))
    return views[0]
