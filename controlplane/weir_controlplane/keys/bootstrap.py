"""The first admin key: from a file that was given (a Secret), or made into one. Never a default."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import structlog
from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from weir_controlplane.ids import new_id
from weir_controlplane.keys.secret import KeySecret, new_secret, parse_secret
from weir_controlplane.services import Services
from weir_controlplane.store.clock import db_now
from weir_controlplane.store.models import ApiKey

_log = structlog.get_logger(__name__)


class AdminKeyFileError(Exception):
    """The file of the admin key cannot be used; the message says why."""


async def ensure_admin_key(services: Services) -> None:
    """Registers the key in the file; without file and without any admin key, makes both.

    Raises:
        AdminKeyFileError: the file holds no key, or cannot be read or written.
    """
    path = services.settings.admin_key
    insert = postgresql.insert if services.database.dialect == "postgresql" else sqlite.insert
    async with services.database.transaction() as session:
        given = _read(path)
        if given is None:
            admins = select(ApiKey.id).where(ApiKey.scope == "admin", ApiKey.revoked_at.is_(None))
            if (await session.execute(admins.limit(1))).first() is not None:
                return
            given = _make(path)
        # Replicas that start at once have the same key.
        made = await session.execute(
            insert(ApiKey)
            .values(
                id=new_id("key_"),
                scope="admin",
                name=f"from {path.name}",
                prefix=given.prefix,
                hash=given.hash,
                created_at=db_now(),
            )
            .on_conflict_do_nothing(index_elements=["prefix"])
            .returning(ApiKey.id)
        )
    if made.first() is not None:
        _log.info("admin_key_registered", file=str(path))


def _read(path: Path) -> KeySecret | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AdminKeyFileError(f"admin_key_file: {path} cannot be read: {error}") from error
    secret = parse_secret(text)
    if secret is None:
        raise AdminKeyFileError(
            f"admin_key_file: {path} holds no Weir key; remove it and one is made"
        )
    return secret


def _make(path: Path) -> KeySecret:
    """The key in the file, a new one unless another replica was faster.

    The file appears under its name with the key in it: nobody reads it half-written.

    Raises:
        AdminKeyFileError: it cannot be written.
    """
    secret = new_secret()
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(secret.text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(unfinished, path)
        finally:
            unfinished.unlink()
    except OSError as error:
        made = _read(path) if isinstance(error, FileExistsError) else None
        if made is not None:
            return made
        raise AdminKeyFileError(f"admin_key_file: {path} cannot be written: {error}") from error
    return secret
