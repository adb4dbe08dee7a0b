"""What the leases of replicas on their work have in common: renewal, and how they are lost.

The rows are batches and BatchJobs, each with the columns ``work_nonce`` and ``work_lease_until``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog
from sqlalchemy import ColumnElement, or_, update

from weir_controlplane.services import BackgroundTask, Services
from weir_controlplane.settings import Settings
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.kubernetes_models import BatchJob
from weir_controlplane.store.models import Batch

# The longest that one step may take: an object of gigabytes that is synced, or put together from
# its parts, by a store that is slow and asked again.
STILL_S = 900.0
MAX_BACKOFF_S = 60.0
_log = structlog.get_logger(__name__)


class LeaseLostError(Exception):
    """Another replica has this work now, or it is no longer wanted: write nothing more."""


class Held:
    """A lease as who works under it sees it, from any thread."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        """``clock_s`` is monotonic."""
        self._clock_s = clock_s
        self._ours = True
        self._moved_at_s = clock_s()

    def wanted(self) -> bool:
        """Whether it is ours yet. To be asked after each step: who asks has moved on."""
        if self._ours:
            self._moved_at_s = self._clock_s()
        return self._ours

    def is_ours(self) -> bool:
        """Whether it is ours yet, for who only watches."""
        return self._ours

    def still_s(self) -> float:
        """How long nothing has moved."""
        return self._clock_s() - self._moved_at_s

    def lose(self) -> None:
        """It is not ours from now on."""
        self._ours = False


@contextlib.asynccontextmanager
async def kept_alive(
    renew: Callable[[], Awaitable[None]],
    *,
    length_s: float,
    give_up: Callable[[], Awaitable[None]] | None = None,
    clock_s: Callable[[], float] = time.monotonic,
    **ids: str,
) -> AsyncIterator[Held]:
    """Renews a lease at a third of its length, for as long as the work under it moves on.

    ``renew`` raises LeaseLostError when it is not ours any more; ``ids`` name the work in the log.
    ``give_up`` ends it where nothing has moved for `STILL_S`: a store that hangs here may answer
    another replica. None: it is not asked after each step, and may take as long as it likes.
    """
    held = Held(clock_s)

    async def keep() -> None:
        while held.is_ours():  # libraries have lost a cancellation that met a result
            await asyncio.sleep(length_s / 3)
            if not held.is_ours():
                return
            try:
                if give_up is not None and held.still_s() > STILL_S:
                    held.lose()  # first: what wakes up now must not go on
                    await give_up()
                    _log.warning("work_stands_still", **ids, still_s=round(held.still_s()))
                    return
                await renew()
            except LeaseLostError:
                held.lose()
                return
            except Exception as error:  # noqa: BLE001 - the main loop of the renewal
                _log.warning("lease_not_renewed", **ids, error=type(error).__name__)

    task = asyncio.create_task(keep())
    try:
        yield held
    finally:
        held.lose()  # a thread still at work stops at its next line
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def is_free(of: type[Batch | BatchJob], settings: Settings) -> ColumnElement[bool]:
    """Whether nobody works on it and no pause after a failure holds it, by the database's clock."""
    until = of.work_lease_until
    return or_(until <= db_now(), until > db_now() + longest_lease_s(settings))


def longest_lease_s(settings: Settings) -> float:
    """Beyond this a lease or pause is from a clock that was ahead: who works yet soon renews it.

    Twice what can be: replicas may have different settings while one replaces another.
    """
    return 2 * max(settings.work_lease_s, MAX_BACKOFF_S)


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
