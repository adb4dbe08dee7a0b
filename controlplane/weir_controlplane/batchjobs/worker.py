"""The loop that makes batches of jobs and delivers their output, the same in every replica."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import CancelledError
from collections import Counter
from functools import partial

import structlog
from sqlalchemy import ColumnElement

from weir_controlplane.batchjobs.delivery import deliver, end_undeliverable
from weir_controlplane.batchjobs.failing import QUOTA_EXCEEDED
from weir_controlplane.batchjobs.intake import end_overdue, take_in
from weir_controlplane.batchjobs.leases import JobWork, claim, give_back, give_up, renew
from weir_controlplane.errors import QuotaExceededError, WeirError
from weir_controlplane.leases import STILL_S, LeaseLostError, kept_alive
from weir_controlplane.services import Services
from weir_controlplane.store.database import OUTAGES, is_outage

WORKERS = 4
OF_A_TENANT = 2
_STILL = f"nothing moved for {STILL_S / 60:.0f} minutes: do the files, or what a URI names, hang?"
_log = structlog.get_logger(__name__)


class Crew:
    """The workers of one replica for one kind of work; a tenant has at most `OF_A_TENANT` at once.

    A server may take long for an input, or an output: others must not wait for it.
    """

    def __init__(self, wanted: ColumnElement[bool], *, topic: str | None = None) -> None:
        """``wanted``: the jobs that need it; ``topic``: of hints that there is one, if any come."""
        self._wanted = wanted
        self._topic = topic
        self._busy: Counter[str] = Counter()  # by tenant
        self._claiming = asyncio.Lock()

    async def work_forever(self, services: Services) -> None:
        """One worker: works on jobs until cancelled."""
        while True:
            work = await self._claim(services)
            if work is None:
                await self._wait(services)
                continue
            try:
                await work_on(services, work)
            finally:
                self._busy[work.tenant_id] -= 1

    async def _wait(self, services: Services) -> None:
        if self._topic is None:
            await asyncio.sleep(services.settings.poll_s)
        else:
            await services.nudge.wait(self._topic, services.settings.poll_s)

    async def _claim(self, services: Services) -> JobWork | None:
        async with self._claiming:
            full = [tenant for tenant, jobs in self._busy.items() if jobs >= OF_A_TENANT]
            work = await claim(services, self._wanted, without=full)
            if work is not None:
                self._busy[work.tenant_id] += 1
            return work


async def work_on(services: Services, work: JobWork) -> None:
    """Does what a job needs; what fails for now is tried again later.

    Raises:
        CancelledError: the process stops; the lease is given back.
    """
    do = take_in if work.batch_id is None else deliver
    try:
        async with kept_alive(
            partial(renew, services, work),
            length_s=services.settings.work_lease_s,
            give_up=partial(give_up, services, work, "InputUnavailable", _STILL, still=True),
            uid=work.uid,
        ) as held:
            await do(services, work, held.wanted)
    except LeaseLostError:
        await give_back(services, work)
    except CancelledError:
        with contextlib.suppress(*OUTAGES):  # else the lease just ends
            await asyncio.shield(give_back(services, work))
        raise
    except QuotaExceededError:
        await give_up(services, work, QUOTA_EXCEEDED)
    except WeirError as error:
        _log.warning("batchjob_waits", uid=work.uid, error=repr(error.__cause__ or error))
        await _fail(services, work, "InputUnavailable", error.message)
    except Exception as error:  # noqa: BLE001 - the main loop: another job may do better
        name, outage = type(error).__name__, is_outage(error)
        _log.error("batchjob_failed", uid=work.uid, error=name, exc_info=not outage)
        # What the database did not let be done is no fault of the job, however often it happens.
        leave = give_up if outage else _fail
        await leave(services, work, "InternalError", "an error inside the control plane")


async def _fail(services: Services, work: JobWork, reason: str, message: str) -> None:
    """Leaves the work to a later attempt, or ends a job that has had its time."""
    end = end_overdue if work.batch_id is None else end_undeliverable
    if not await end(services, work, message):
        await give_up(services, work, reason, message)
