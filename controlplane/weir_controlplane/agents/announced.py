"""What services say they serve, noted once: batches may name it from then on.

A pod may say anything, and another thing each time: of a service so much is kept and no more.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeAlias

import structlog
from sqlalchemy import delete, exists, or_, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from weir_controlplane.agents.schemas import SyncRequest
from weir_controlplane.dispatch.incarnations import REMEMBERED_S
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import OUTAGES, Database
from weir_controlplane.store.fleet_models import Agent, ServedModel
from weir_controlplane.store.kubernetes_models import LlmService

MAX_MODELS = 256  # rows of a service; a sync has 64 at most
MAX_SERVICES = 512  # remembered here; what is forgotten is written once more
MAX_TOLD = 8  # of a service at once: pods of two revisions stand beside each other in a rollout
REFRESH_S = 3600.0
_REFRESH_WAIT_S = 1.0
_Models: TypeAlias = tuple[tuple[str, str, int | None], ...]
_log = structlog.get_logger(__name__)


class AnnouncedModels:
    """Writes what a service serves when this replica hears it for the first time, then hourly.

    Where a service has said too much its oldest models go: what it serves now must not be old.

    Args:
        clock_s: a monotonic clock in seconds.
    """

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        # By service: hashes of what it said, for the texts may be long, and when it was written.
        self._told: OrderedDict[str, OrderedDict[int, float]] = OrderedDict()

    async def note(self, database: Database, request: SyncRequest) -> None:
        """Notes the models of a sync; nothing when they were noted lately."""
        models = tuple((item.name, item.revision, item.max_model_len) for item in request.models)
        if not models:
            return
        said, now_s = hash(models), self._clock_s()
        told = self._told.get(request.service)
        written_s = told.get(said) if told is not None else None
        if written_s is None:
            await self._write(database, request.service, models)
            self._remember(request.service, said, now_s)
        elif now_s - written_s < REFRESH_S:
            self._remember(request.service, said, written_s)
        else:
            self._remember(request.service, said, now_s)  # before: once is enough, even in vain
            await self._refresh(database, request.service, models)

    def _remember(self, service: str, said: int, written_s: float) -> None:
        told = self._told.setdefault(service, OrderedDict())
        told[said] = written_s
        told.move_to_end(said)
        self._told.move_to_end(service)
        if len(told) > MAX_TOLD:
            told.popitem(last=False)
        if len(self._told) > MAX_SERVICES:
            self._told.popitem(last=False)

    async def _refresh(self, database: Database, service: str, models: _Models) -> None:
        """Writes again what is known already: a policy must not wait for that, nor fail."""
        try:
            async with asyncio.timeout(_REFRESH_WAIT_S):
                await self._write(database, service, models)
        except OUTAGES as error:  # TimeoutError is among them
            _log.warning("models_not_refreshed", service=service, error=str(error))

    async def _write(self, database: Database, service: str, models: _Models) -> None:
        insert = postgresql.insert if database.dialect == "postgresql" else sqlite.insert
        async with database.transaction() as session:
            for name, revision, max_model_len in sorted(models, key=lambda item: item[:2]):
                seen = {"max_model_len": max_model_len, "seen_at": db_now()}
                key = {"service": service, "name": name, "revision": revision}
                await session.execute(
                    insert(ServedModel)
                    .values(**key, **seen)
                    .on_conflict_do_update(index_elements=list(key), set_=seen)
                )
            crowded = await _delete_oldest(session, service, {item[0] for item in models})
        if crowded:  # what others serve may be gone: their next syncs write it again
            self._told.pop(service, None)


async def _delete_oldest(session: AsyncSession, service: str, said: Iterable[str]) -> bool:
    """Deletes the oldest rows of a service beyond `MAX_MODELS`; whether there were any.

    What was ``said`` now stays, even where the clock was set back.
    """
    age = (ServedModel.seen_at, ServedModel.name, ServedModel.revision)
    of_service = ServedModel.service == service
    newest_first = select(*age).where(of_service).order_by(*(column.desc() for column in age))
    beyond = (await session.execute(newest_first.offset(MAX_MODELS).limit(1))).one_or_none()
    if beyond is None:
        return False
    # Rows that another replica writes are skipped: it may wait for some of ours.
    oldest = (
        select(ServedModel.name, ServedModel.revision)
        .where(of_service, tuple_(*age) <= tuple_(*beyond), ServedModel.name.not_in(said))
        .with_for_update(skip_locked=True)
    )
    gone = tuple_(ServedModel.name, ServedModel.revision).in_(oldest)
    await session.execute(
        delete(ServedModel).where(of_service, gone),
        execution_options={"synchronize_session": False},
    )
    return True


async def forget_models(database: Database) -> int:
    """Deletes what a service has not served for `REMEMBERED_S`; how many rows.

    A batch that names it then fails at once, rather than wait for pods that never come. An
    LLMService without pods keeps its models: it may be scaled to nothing.
    """
    since = db_now() - REMEMBERED_S
    has_agents = exists().where(Agent.service == ServedModel.service, Agent.last_sync_at >= since)
    registered = exists().where(LlmService.id == ServedModel.service)
    statement = delete(ServedModel).where(ServedModel.seen_at < since, or_(has_agents, ~registered))
    async with database.transaction() as session:
        gone = await session.execute(
            statement.returning(ServedModel.name),
            execution_options={"synchronize_session": False},
        )
        return len(gone.all())
