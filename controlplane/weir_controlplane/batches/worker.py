"""The loop that takes batches in and winds them up, the same in every replica.

Level-triggered: it looks for batches that need work; a hint only makes it look sooner.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import CancelledError
from collections.abc import Callable
from functools import partial

import structlog

from weir_controlplane.batches.intake import take_in
from weir_controlplane.batches.leases import (
    Work,
    apply_due,
    claim,
    give_back,
    give_up,
    renew,
)
from weir_controlplane.batches.losses import Losses, check_input, find_losses, is_believed
from weir_controlplane.batches.output import UnwantedError
from weir_controlplane.batches.result_reader import BrokenResultError
from weir_controlplane.batches.states import Status
from weir_controlplane.batches.winding_up import wind_up
from weir_controlplane.errors import MissingObjectError, StorageError, WeirError
from weir_controlplane.leases import STILL_S, LeaseLostError, kept_alive
from weir_controlplane.services import Services
from weir_controlplane.store.database import OUTAGES, is_outage

TOPIC = "batches"
_MISSING = (MissingObjectError, BrokenResultError)
_MAX_REASON = 500
_STILL = f"nothing moved for {STILL_S / 60:.0f} minutes: does the file store hang?"
_log = structlog.get_logger(__name__)


async def work_forever(services: Services) -> None:
    """Works on batches until cancelled."""
    while True:
        if not await work_once(services):
            await services.nudge.wait(TOPIC, services.settings.poll_s)


async def work_once(services: Services) -> bool:
    """Works on one batch; False when none needed it.

    Raises:
        CancelledError: the process stops; the lease is given back.
    """
    await apply_due(services)
    work = await claim(services)
    if work is None:
        return False
    try:
        await _do(services, work)
    except (LeaseLostError, UnwantedError):
        _log.info("batch_work_lost", batch_id=work.batch_id)
    except CancelledError:
        with contextlib.suppress(*OUTAGES):  # else the lease just ends
            await asyncio.shield(give_back(services, work))
        raise
    except Exception as error:  # noqa: BLE001 - the main loop: another batch may do better
        reason = _reason(error)
        expected = isinstance(error, (WeirError, BrokenResultError)) or is_outage(error)
        _log.warning(
            "batch_work_failed", batch_id=work.batch_id, error=reason, exc_info=not expected
        )
        await give_up(services, work, reason, missing=isinstance(error, _MISSING))
    return True


def _reason(error: Exception) -> str:
    """What the operator is shown. An error that nobody expected may show what was being read."""
    if is_outage(error):
        why = getattr(error, "orig", None) or error
        return f"{type(why).__name__}: {why}"[:_MAX_REASON]
    # The store's own error names the object that it has lost, or the host that it cannot reach.
    cause = error.__cause__ if isinstance(error, StorageError) else None
    said = error if cause is None else cause
    name = type(said).__name__
    known = cause is not None or isinstance(error, (WeirError, BrokenResultError))
    return f"{name}: {said}"[:_MAX_REASON] if known else name


async def _do(services: Services, work: Work) -> None:
    async with kept_alive(
        partial(renew, services, work),
        length_s=services.settings.work_lease_s,
        give_up=partial(give_up, services, work, _STILL, still=True),
        batch_id=work.batch_id,
    ) as held:
        wanted = held.wanted
        try:
            await _move_on(services, work, wanted)
        except _MISSING as error:
            if not await is_believed(services, work):
                raise
            losses = await find_losses(services, work, wanted)
            if losses == Losses():
                raise StorageError(
                    "every object of the batch is there, whole and consistent"
                ) from error
            _log.warning(
                "batch_objects_lost",
                batch_id=work.batch_id,
                input_file_id=losses.input_file_id,
                results=len(losses.results),
                lines=len(losses.lines),
            )
            await wind_up(services, work, wanted, losses)


async def _move_on(services: Services, work: Work, wanted: Callable[[], bool]) -> None:
    undecided = work.state.closing_as is None
    if undecided and work.state.status is Status.IN_PROGRESS:
        await check_input(services, work, wanted)
    elif undecided and work.state.status is Status.VALIDATING:
        await take_in(services, work, wanted)
    else:
        await wind_up(services, work, wanted)
