"""Settings of the client commands: flags first, then the environment. Read nowhere else."""

from __future__ import annotations

from pydantic import Field, HttpUrl, SecretStr, TypeAdapter, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from weir_cli.errors import CliError, ExitStatus


class ClientSettings(BaseSettings):
    """Where the control plane is and who asks."""

    model_config = SettingsConfigDict(env_prefix="WEIR_", frozen=True, extra="ignore")

    url: str = Field(
        default="http://127.0.0.1:8080",
        description="Base URL of the control plane, with or without a closing /v1.",
    )
    api_key: SecretStr | None = Field(
        default=None,
        description="API key of a tenant; an admin key for `weir queue`, `weir keys` and "
        "`weir tenants`.",
    )

    @field_validator("url")
    @classmethod
    def _strip_url(cls, url: str) -> str:
        """As the key's: httpx takes no newline in it."""
        return url.strip()

    @field_validator("api_key")
    @classmethod
    def _strip(cls, key: SecretStr | None) -> SecretStr | None:
        """Files and Secrets end with a newline that is no part of the key."""
        return None if key is None else SecretStr(key.get_secret_value().strip())


def client_settings(url: str | None, api_key: str | None) -> ClientSettings:
    """The settings of one command.

    Raises:
        CliError: the URL is no http(s) URL or has more than an address, or no key was given.
    """
    given = {"url": url, "api_key": SecretStr(api_key) if api_key else None}
    settings = ClientSettings(**{k: v for k, v in given.items() if v})  # type: ignore[arg-type]
    try:
        parts = TypeAdapter(HttpUrl).validate_python(settings.url)
    except ValidationError:
        raise CliError(
            f"url: {settings.url!r} is not an http or https URL",
            remedy="give --url or WEIR_URL like http://127.0.0.1:8080",
            status=ExitStatus.USAGE,
        ) from None
    if parts.username or parts.password or parts.query or parts.fragment:
        # Not shown: a password may be in it. HTTP would send it in the place of the key.
        raise CliError(
            "url: has a user, a password, or something behind ? or #",
            remedy="give --url or WEIR_URL like http://127.0.0.1:8080, and the key as --api-key or "
            "WEIR_API_KEY",
            status=ExitStatus.USAGE,
        )
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    # Checked here: an error of HTTP about a header would show the key.
    if not all("!" <= char <= "~" for char in key):
        raise CliError(
            "api_key: has characters that no key has",
            remedy="give --api-key or WEIR_API_KEY as `weir keys create` showed it",
            status=ExitStatus.USAGE,
        )
    if not key:
        raise CliError(
            "api_key: no API key given",
            remedy="give --api-key, or set WEIR_API_KEY; `weir keys create` makes one",
            status=ExitStatus.USAGE,
        )
    return settings
