"""Settings fail loudly, by name (style rule 11)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from weir_controlplane.settings import Settings


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("WEIR_PORT", "eighty", "port"),
        ("WEIR_PORT", "70000", "port"),
        ("WEIR_DATABASE_URL", "mysql://x", "database_url"),
        ("WEIR_REDIS_URL", "http://x", "redis_url"),
        ("WEIR_MAX_BATCH_LINES", "0", "max_batch_lines"),
        ("WEIR_LOG_LEVEL", "loud", "log_level"),
        ("WEIR_URI_PRIVATE_HOSTS", "a,minio:9000", "uri_private_hosts.1"),
        ("WEIR_URI_PRIVATE_HOSTS", "http://minio", "uri_private_hosts.0"),
    ],
)
def test_a_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert [".".join(map(str, error["loc"])) for error in caught.value.errors()] == [field]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqlite+aiosqlite:///", "SQLite needs a file"),
        ("sqlite+aiosqlite:///:memory:", "SQLite needs a file"),
        ("sqlite+aiosqlite:///x.db?timeout=long", "option timeout: .*'long'; correct it or leave"),
        ("sqlite+aiosqlite:///x.db?timeout=1&timeout=2", "option timeout: "),
        ("sqlite+aiosqlite:///x.db?wait=1", "SQLite's driver has no option wait; it has .*timeout"),
        ("postgresql+asyncpg://db/weir?port=a", "option port: "),
        ("postgresql+asyncpg://db/weir?sslmode=require", "no option sslmode; it has .*ssl"),
        ("postgresql+asyncpg://weir:hunter2@db:a/weir", "must have a port of 0 to 65535, or none"),
        ("postgresql+asyncpg://weir:hunter2@db:/weir", "must have a port of 0 to 65535, or none"),
    ],
)
def test_what_is_wrong_with_a_database_url_is_said_and_the_url_is_not(url: str, why: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(database_url=SecretStr(url))
    (error,) = caught.value.errors()
    assert error["loc"] == ("database_url",)
    assert re.search(why, error["msg"])
    assert "hunter2" not in str(caught.value)


def test_options_that_the_driver_has_are_taken() -> None:
    url = "postgresql+asyncpg://db/weir?ssl=require&host=a:1&host=b:2"
    assert Settings(database_url=SecretStr(url)).database == url


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_MODELS", "a/b, c ,")
    monkeypatch.setenv("WEIR_URI_PRIVATE_HOSTS", "Artifacts.Corp,10.0.0.7")
    monkeypatch.setenv("WEIR_DATA_DIR", "/somewhere")
    settings = Settings()
    assert settings.models == ("a/b", "c")
    assert settings.uri_private_hosts == ("artifacts.corp", "10.0.0.7")
    assert settings.database == "sqlite+aiosqlite:////somewhere/weir.db"
    assert settings.files == "file:///somewhere/files"
    assert settings.admin_key == Path("/somewhere/admin.key")


def test_no_setting_shows_a_password() -> None:
    settings = Settings(database_url=SecretStr("postgresql+asyncpg://weir:hunter2@db/weir"))
    assert "hunter2" not in repr(settings)
    assert "hunter2" in settings.database


def test_every_setting_is_described() -> None:
    undescribed = [name for name, field in Settings.model_fields.items() if not field.description]
    assert undescribed == []


def test_windows_must_be_in_order() -> None:
    with pytest.raises(ValidationError, match="min_completion_window_s is above"):
        Settings(min_completion_window_s=100, max_completion_window_s=10)
