"""Batches whose validation or end fails and is tried again, as operators see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import case, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.batches.leases import STUCK_AFTER
from weir_controlplane.batches.states import LIVE
from weir_controlplane.leases import MAX_BACKOFF_S
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.models import Batch

MAX_SHOWN = 100  # those that failed most often
STAGES = ("validating", "running", "finalizing", "cancelling", "expiring")

# Of a running batch it is the search for its input that fails.
_stage = case(
    (Batch.closing_as == "expired", "expiring"),
    (Batch.status == "in_progress", "running"),
    else_=Batch.status,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failing:
    """A batch whose last attempt failed. ``retry_in_s`` 0: it is due, or being made.

    ``error``: names, hosts and numbers; never what was read.
    """

    batch_id: str
    stage: str
    failures: int
    retry_in_s: float
    error: str


async def read_failing(session: AsyncSession) -> list[Failing]:
    """The batches that failed most often, `MAX_SHOWN` at most."""
    rows = await session.execute(
        select(
            Batch.id, _stage, Batch.work_failures, Batch.work_lease_until - db_now(),
            Batch.work_nonce, Batch.work_error,
        )
        .where(Batch.status.in_(LIVE), Batch.work_failures > 0)
        .order_by(Batch.work_failures.desc(), Batch.id)
        .limit(MAX_SHOWN)
    )  # fmt: skip
    return [
        Failing(
            batch_id=batch_id,
            stage=stage,
            failures=failures,
            # Longer than any pause: the clock went back, and nobody waits for it (`is_free`).
            retry_in_s=max(0.0, float(wait_s)) if not nonce and wait_s <= MAX_BACKOFF_S else 0.0,
            error=error or "",
        )
        for batch_id, stage, failures, wait_s, nonce, error in rows
    ]


async def count_stuck(session: AsyncSession) -> Mapping[str, int]:
    """How many batches have failed three times or more in a row, or stood still, by stage."""
    rows = await session.execute(
        select(_stage, func.count())
        .where(Batch.status.in_(LIVE), Batch.work_failures >= STUCK_AFTER)
        .group_by(_stage)
    )
    return dict.fromkeys(STAGES, 0) | {str(stage): int(count) for stage, count in rows}
