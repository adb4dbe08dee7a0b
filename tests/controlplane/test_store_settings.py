"""Settings fail loudly, by name (style rule 11)."""

from __future__ import annotations

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
    ],
)
def test_a_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert [error["loc"] for error in caught.value.errors()] == [(field,)]


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_MODELS", "a/b, c ,")
    monkeypatch.setenv("WEIR_DATA_DIR", "/somewhere")
    settings = Settings()
    assert settings.models == ("a/b", "c")
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
