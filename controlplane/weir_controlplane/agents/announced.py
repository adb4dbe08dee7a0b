"""What services say they serve, noted once: batches may name it from then on."""

from __future__ import annotations

from typing import TypeAlias

from sqlalchemy.dialects import postgresql, sqlite

from weir_controlplane.agents.schemas import SyncRequest
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.database import Database
from weir_controlplane.store.fleet_models import ServedModel

_Models: TypeAlias = tuple[tuple[str, str, int | None], ...]


class AnnouncedModels:
    """Writes what a service serves when this replica hears it for the first time."""

    def __init__(self) -> None:
        self._told: set[tuple[str, _Models]] = set()

    async def note(self, database: Database, request: SyncRequest) -> None:
        """Notes the models of a sync; nothing when they were noted before."""
        models = tuple((item.name, item.revision, item.max_model_len) for item in request.models)
        if not models or (request.service, models) in self._told:
            return
        insert = postgresql.insert if database.dialect == "postgresql" else sqlite.insert
        async with database.transaction() as session:
            for name, revision, max_model_len in sorted(models, key=lambda item: item[:2]):
                seen = {"max_model_len": max_model_len, "seen_at": db_now()}
                key = {"service": request.service, "name": name, "revision": revision}
                await session.execute(
                    insert(ServedModel)
                    .values(**key, **seen)
                    .on_conflict_do_update(index_elements=list(key), set_=seen)
                )
        self._told.add((request.service, models))
