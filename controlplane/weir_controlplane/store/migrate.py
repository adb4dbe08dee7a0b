"""Brings the schema to this release's level, and refuses a schema that has left it behind (§8.10).

Migrations expand; what they take away, a later release takes away. Each sets ``schema_info``:
its own level, and the oldest level of code that can still work on it.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select, text

from weir_controlplane.store.models import SchemaInfo

SCHEMA_LEVEL = 8  # raise with every migration
_ADVISORY_LOCK = 0x57454952  # "WEIR"
_MIGRATIONS = Path(__file__).parent / "migrations"


class SchemaTooNewError(Exception):
    """The database has moved on past this release."""


def alembic_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration for the packaged migrations, on ``connection`` when given."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def migrate(connection: Connection) -> None:
    """Migrates inside the caller's transaction; one replica at a time.

    Raises:
        SchemaTooNewError: the schema no longer supports this release: start a newer one.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
    _refuse_newer(connection)
    config = alembic_config(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    current = MigrationContext.configure(connection).get_current_revision()
    if current is None or current in known:
        command.upgrade(config, "head")
    # else: a newer release has expanded the schema and still supports this one.


def _refuse_newer(connection: Connection) -> None:
    if not inspect(connection).has_table(SchemaInfo.__tablename__):
        return
    row = connection.execute(
        select(SchemaInfo.level, SchemaInfo.oldest_compatible_level)
    ).one_or_none()
    if row is not None and row.oldest_compatible_level > SCHEMA_LEVEL:
        raise SchemaTooNewError(
            f"the database's schema is at level {row.level} and supports releases from level "
            f"{row.oldest_compatible_level}; this release knows level {SCHEMA_LEVEL}: "
            "start a newer release"
        )
