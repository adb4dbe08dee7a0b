"""The loop that makes batches of jobs and delivers their output, the same in every replica."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import CancelledError
from functools import partial

import structlog

from weir_controlplane.batchjobs.delivery import deliver
from weir_controlplane.batchjobs.intake import take_in
from weir_controlplane.batchjobs.leases import JobWork, claim, give_back, give_up, renew
from weir_controlplane.batchjobs.service import TOPIC
from weir_controlplane.errors import QuotaExceededError, WeirError
from weir_controlplane.leases import LeaseLostError, kept_alive
from weir_controlplane.services import Services
from weir_controlplane.store.database import OUTAGES

_log = structlog.get_logger(__name__)


async def work_forever(services: Services) -> None:
    """Works on jobs until cancelled."""
    while True:
        work = await claim(services)
        if work is None:
            await services.nudge.wait(TOPIC, services.settings.poll_s)
        else:
            await work_on(services, work)


async def work_on(services: Services, work: JobWork) -> None:
    """Does what a job needs; what fails for now is tried again later.

    Raises:
        CancelledError: the process stops; the lease is given back.
    """
    keep = partial(renew, services, work)
    try:
        async with kept_alive(keep, length_s=services.settings.work_lease_s, uid=work.uid):
            await (take_in(services, work) if work.batch_id is None else deliver(services, work))
    except LeaseLostError:
        await give_back(services, work)
    except CancelledError:
        with contextlib.suppress(*OUTAGES):  # else the lease just ends
            await asyncio.shield(give_back(services, work))
        raise
    except QuotaExceededError:
        await give_up(services, work, "QuotaExceeded")
    except WeirError as error:
        _log.warning("batchjob_waits", uid=work.uid, error=repr(error.__cause__ or error))
        await give_up(services, work, "InputUnavailable")
    except Exception as error:  # noqa: BLE001 - the main loop: another job may do better
        _log.exception("batchjob_failed", uid=work.uid, error=type(error).__name__)
        await give_up(services, work, "InternalError")
