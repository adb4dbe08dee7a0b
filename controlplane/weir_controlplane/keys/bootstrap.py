"""The first admin key: from a file that was given (a Secret), or made into one. Never a default."""

from __future__ import annotations

import os
from pathlib import Path

import structlog
from sqlalchemy import select

from weir_controlplane.ids import new_id
from weir_controlplane.keys.secret import KeySecret, new_secret, parse_secret
from weir_controlplane.services import Services
from weir_controlplane.store.database import clock_s
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
    async with services.database.transaction() as session:
        given = _read(path)
        if given is None:
            admins = select(ApiKey.id).where(ApiKey.scope == "admin", ApiKey.revoked_at.is_(None))
            if (await session.execute(admins.limit(1))).first() is not None:
                return
            given = _make(path)
        known = select(ApiKey.id).where(ApiKey.prefix == given.prefix)
        if (await session.execute(known)).first() is not None:
            return
        session.add(
            ApiKey(
                id=new_id("key_"),
                scope="admin",
                name=f"from {path.name}",
                prefix=given.prefix,
                hash=given.hash,
                created_at=await clock_s(session),
            )
        )
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
    secret = new_secret()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secret.text + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise AdminKeyFileError(f"admin_key_file: {path} cannot be written: {error}") from error
    return secret
