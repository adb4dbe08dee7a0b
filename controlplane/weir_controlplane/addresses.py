"""Addresses in settings: types of URL, checked as far as one can be without connecting.

No message shows a URL: it may hold a password.
"""

from __future__ import annotations

from inspect import signature
from typing import Annotated
from urllib.parse import urlsplit

import asyncpg
from pydantic import AfterValidator, Field, HttpUrl, SecretStr, TypeAdapter, ValidationError
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

_DATABASES = ("sqlite+aiosqlite:///", "postgresql+asyncpg://")
_REDIS = ("redis://", "rediss://", "unix://")
_POSTGRES_OPTIONS = frozenset(
    {*signature(asyncpg.connect).parameters, "prepared_statement_cache_size"}
) - {"dsn", "loop", "connection_class", "record_class"}
_SQLITE_OPTIONS = frozenset({"timeout", "cached_statements"})
_PORT = "must have a port of 0 to 65535, or none"
_WEB_ADDRESS = TypeAdapter(HttpUrl)


def _check_database(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if not text.startswith(_DATABASES):
        raise ValueError(f"must start with {' or '.join(_DATABASES)}")
    _check_port(text)
    try:
        url = make_url(text)
    except ValueError:  # a colon without a port
        raise ValueError(_PORT) from None
    if url.get_backend_name() != "sqlite":
        _check_options(url, "PostgreSQL", _POSTGRES_OPTIONS)
        return secret
    if not url.database or url.database == ":memory:":
        raise ValueError("SQLite needs a file, as sqlite+aiosqlite:///PATH")
    _check_options(url, "SQLite", _SQLITE_OPTIONS)
    return secret


def _check_options(url: URL, kind: str, known: frozenset[str]) -> None:
    unknown = sorted(url.query.keys() - known)
    if unknown:
        raise ValueError(
            f"{kind}'s driver has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}"
        )
    dialect = url.get_dialect()()
    for name, value in url.query.items():
        try:
            dialect.create_connect_args(url.set(query={name: value}))
        except (TypeError, ValueError, ArgumentError) as error:
            raise ValueError(f"option {name}: {error}; correct it or leave it out") from None


def _check_redis(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if not text.startswith(_REDIS):
        raise ValueError(f"must start with {', '.join(_REDIS)}")
    _check_port(text)
    return secret


def _check_port(text: str) -> None:
    try:
        _ = urlsplit(text).port
    except ValueError:  # whose text shows the URL
        raise ValueError(_PORT) from None


def _check_web(text: str) -> str:
    try:
        _ = _WEB_ADDRESS.validate_python(text)
    except ValidationError:
        raise ValueError("must be an http or https URL with a host") from None
    return text


DatabaseUrl = Annotated[SecretStr, AfterValidator(_check_database)]
"""A URL as SQLAlchemy reads it, of one of the two drivers, with options that the driver has."""
RedisUrl = Annotated[SecretStr, AfterValidator(_check_redis)]
"""A URL as Redis's client reads it."""
WebUrl = Annotated[str, Field(pattern=r"^https?://[^\s?#]+$"), AfterValidator(_check_web)]
"""A base URL over HTTP or HTTPS; the chart's schema has the pattern too."""
HostName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"), AfterValidator(str.lower)
]
"""A host's name or IPv4 address, in small letters."""
