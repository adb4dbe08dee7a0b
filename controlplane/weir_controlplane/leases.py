"""What the leases of replicas on their work have in common: renewal, and how they are lost.

The rows are batches and BatchJobs, each with the columns ``work_nonce`` and ``work_lease_until``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog
from sqlalchemy import update

from weir_controlplane.services import BackgroundTask, Services
from weir_controlplane.store.kubernetes_models import BatchJob
from weir_controlplane.store.models import Batch

_log = structlog.get_logger(__name__)


class LeaseLostError(Exception):
    """Another replica has this work now, or it is no longer wanted: write nothing more."""


@contextlib.asynccontextmanager
async def kept_alive(
    renew: Callable[[], Awaitable[None]], *, length_s: float, **ids: str
) -> AsyncIterator[asyncio.Event]:
    """Renews a lease at a third of its length; the event is set for as long as it is ours.

    ``renew`` raises LeaseLostError when it is not; ``ids`` name the work in the log.
    """
    held = asyncio.Event()
    held.set()

    async def keep() -> None:
        while True:
            await asyncio.sleep(length_s / 3)
            try:
                await renew()
            except LeaseLostError:
                held.clear()
                return
            except Exception as error:  # noqa: BLE001 - the main loop of the renewal
                _log.warning("lease_not_renewed", **ids, error=type(error).__name__)

    task = asyncio.create_task(keep())
    try:
        yield held
    finally:
        held.clear()  # a thread still at work stops at its next line
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def void_leases(of: type[Batch | BatchJob]) -> BackgroundTask:
    """Ends every such lease when an embedded control plane starts: its holder cannot be alive."""

    async def void(services: Services) -> None:
        if services.database.dialect != "sqlite":
            return
        async with services.database.transaction() as session:
            await session.execute(
                update(of)
                .where(of.work_nonce.is_not(None))
                .values(work_nonce=None, work_lease_until=0.0)
            )

    return void
