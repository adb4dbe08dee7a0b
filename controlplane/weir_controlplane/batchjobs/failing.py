"""BatchJobs whose input is read in vain, as operators see them."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.batches.leases import STUCK_AFTER
from weir_controlplane.batchjobs.leases import INPUTS
from weir_controlplane.store.kubernetes_models import BatchJob

STAGE = "intake"
QUOTA_EXCEEDED = "QuotaExceeded"  # its tenant's affair


async def count_stuck_jobs(session: AsyncSession) -> int:
    """How many jobs have failed three times or more in a row before there was a batch."""
    statement = select(func.count()).where(
        INPUTS, BatchJob.work_failures >= STUCK_AFTER, BatchJob.work_error != QUOTA_EXCEEDED
    )
    return (await session.execute(statement)).scalar_one()
