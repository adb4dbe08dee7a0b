"""Settings of the control plane: parsed once, at start, from the environment.

The only place that reads the environment. Each field has a unit in its name and a description;
None always means the default that the description gives. A wrong value raises pydantic's
ValidationError, which names the field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from weir_controlplane.addresses import DatabaseUrl, HostName, RedisUrl, WebUrl

DAY_S = 86_400
MAX_LIFE_S = 3650 * DAY_S
MAX_COUNT = 2**53  # what JSON and the database hold exactly
MAX_WORK_LEASE_S = 3600
MIB_BYTES = 1 << 20
MAX_LINE_BYTES = 8 * MIB_BYTES  # never less: what was taken in is read up to it


class Settings(BaseSettings):
    """Everything that an operator of the control plane can set, as ``WEIR_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix="WEIR_", frozen=True, extra="ignore")

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="TCP port; 0 takes a free one.")
    data_dir: Path = Field(
        default=Path("weir-data"),
        description="Folder of the embedded database, of the files and of the first admin key.",
    )
    database_url: DatabaseUrl | None = Field(
        default=None,
        description="sqlite+aiosqlite:///PATH or postgresql+asyncpg://USER:PASSWORD@HOST/NAME; "
        "default: weir.db in data_dir.",
    )
    database_pool_connections: int = Field(
        default=10, ge=1, le=200, description="Database connections that one replica may hold."
    )
    database_wait_s: float = Field(
        default=60,
        ge=0,
        le=600,
        description="How long a start waits, in seconds, for a database server that does not "
        "answer yet.",
    )
    files_url: str | None = Field(
        default=None,
        description="Where files live, as fsspec reads it (file:///PATH, s3://BUCKET/PREFIX); "
        "default: files in data_dir.",
    )
    redis_url: RedisUrl | None = Field(
        default=None,
        description="redis://HOST:PORT/NUMBER for hints between replicas; default: none, "
        "replicas poll the database.",
    )
    admin_key_file: Path | None = Field(
        default=None,
        description="File (mode 0600) that receives the first admin key; default: admin.key "
        "in data_dir.",
    )
    public_url: WebUrl | None = Field(
        default=None,
        description="Base URL by which users reach this API, for signed links; default: links are "
        "relative.",
    )
    link_life_s: int = Field(
        default=7 * DAY_S,
        ge=3600,
        le=30 * DAY_S,
        description="Longest life of a signed link to a result; the shortest is half of it.",
    )
    default_tenant: str | None = Field(
        default=None,
        pattern=r"^[\w.@ -]{1,100}$",
        description="Tenant that has every namespace which is bound to nobody, made at start when "
        "missing; default: none, such namespaces are refused.",
    )
    kubernetes_api_url: WebUrl | None = Field(
        default=None,
        description="API server that is asked who bears a ServiceAccount token (TokenReview), in a "
        "cluster https://kubernetes.default.svc; default: none, only keys are taken.",
    )
    kubernetes_ca_file: Path | None = Field(
        default=Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"),
        description="Certificate authority of the API server.",
    )
    kubernetes_token_file: Path | None = Field(
        default=Path("/var/run/secrets/kubernetes.io/serviceaccount/token"),
        description="This control plane's own token, which must be allowed to create tokenreviews.",
    )
    token_audience: str = Field(
        default="weir", min_length=1, description="Audience that tokens must be made for."
    )
    operator_service_account: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9-]+/[a-z0-9.-]+$",
        description="ServiceAccount of the operator, as NAMESPACE/NAME; default: none, only keys "
        "of scope admin may do what it does.",
    )
    uri_private_hosts: Annotated[tuple[HostName, ...], NoDecode] = Field(
        default=(),
        description="Hosts, separated by commas, that input URIs may name although their addresses "
        "are private; without scheme and port.",
    )
    log_level: str = Field(
        default="info",
        pattern="^(debug|info|warning|error)$",
        description="Lowest level that is logged.",
    )

    models: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Models, separated by commas, that a batch may name besides those that the "
        "agents serve.",
    )
    max_file_bytes: int = Field(
        default=200 * MIB_BYTES, ge=1, le=1 << 40, description="Largest file that can be uploaded."
    )
    max_batch_lines: int = Field(
        default=50_000, ge=1, le=1_000_000, description="Most lines in one batch."
    )
    max_line_bytes: int = Field(
        default=4 * MIB_BYTES,
        ge=1024,
        le=MAX_LINE_BYTES,
        description="Longest line of an input file; a chunk's lines are fetched 8 MiB at a time.",
    )
    max_json_depth: int = Field(
        default=64, ge=4, le=500, description="Deepest nesting of a line of an input file."
    )
    max_completion_window_s: int = Field(
        default=7 * DAY_S,
        ge=1,
        le=MAX_LIFE_S,
        description="Longest completion window that a batch may ask for.",
    )
    min_completion_window_s: int = Field(
        default=DAY_S,
        ge=1,
        le=MAX_LIFE_S,
        description="Shortest completion window that a batch may ask for.",
    )
    output_expires_s: int = Field(
        default=30 * DAY_S,
        ge=3600,
        le=MAX_LIFE_S,
        description="Life of a batch's output files, and of the copy of a BatchJob's input, after "
        "creation.",
    )
    create_retry_window_s: float = Field(
        default=1800,
        gt=0,
        le=DAY_S,
        description="How long a create can be recognised by its client's own repeat of it.",
    )
    tenant_max_batches: int = Field(
        default=100,
        ge=1,
        le=MAX_COUNT,
        description="Unfinished batches of a tenant without a quota of its own.",
    )
    tenant_max_queued_tokens: int = Field(
        default=2_000_000_000,
        ge=1,
        le=MAX_COUNT,
        description="Estimated tokens in unfinished batches of a tenant without a quota of its "
        "own.",
    )

    chunk_lines: int = Field(
        default=32, ge=1, le=1000, description="Most lines in a chunk, the unit of lease."
    )
    chunk_tokens: int = Field(
        default=100_000,
        ge=1,
        le=1 << 30,
        description="Estimated tokens in a chunk, prompt and output: about a minute of spare "
        "capacity of one pod.",
    )
    default_output_tokens: int = Field(
        default=256,
        ge=1,
        le=1 << 20,
        description="Output tokens taken for a line that sets no max_tokens, in estimates.",
    )

    forecast_sigmas: float = Field(
        default=2.0,
        ge=0,
        le=10,
        description="Standard deviations above the mean online KV demand that are kept free.",
    )
    max_offline_kv_fraction: float = Field(
        default=0.9, ge=0, le=1, description="Largest share of a pod's KV blocks for offline work."
    )
    fresh_offline_kv_fraction: float = Field(
        default=0.3,
        ge=0,
        le=1,
        description="Share of a pod's KV blocks for offline work while its online demand is not "
        "known.",
    )
    max_online_reuse_kv_fraction: float = Field(
        default=0.75,
        ge=0,
        le=1,
        description="Largest share of a pod's KV blocks kept free because online requests find "
        "their prefixes there.",
    )
    max_offline_slots: int = Field(
        default=256, ge=0, le=1 << 20, description="Most offline sequences that may run in a pod."
    )

    poll_s: float = Field(
        default=5.0, gt=0, le=60, description="Seconds between looks at the database for work."
    )
    work_lease_s: float = Field(
        default=90.0,
        ge=1,
        le=MAX_WORK_LEASE_S,
        description="Length of the lease under which a replica validates or finalizes a batch, or "
        "copies for a BatchJob.",
    )
    sweep_s: float = Field(
        default=60.0,
        gt=0,
        le=DAY_S,
        description="Seconds between sweeps of expired and abandoned files.",
    )
    abandoned_upload_s: float = Field(
        default=DAY_S,
        ge=60,
        le=30 * DAY_S,
        description="Age after which an unfinished upload is removed.",
    )
    max_body_bytes: int = Field(
        default=8 * MIB_BYTES,
        ge=64 << 10,
        le=1 << 30,
        description="Largest request body, files and chunk results apart, which have their own.",
    )
    max_in_flight_requests: int = Field(
        default=512,
        ge=1,
        le=1 << 20,
        description="Requests handled at once, three quarters of them those of tenants, and of one "
        "tenant two thirds of these; an eighth agents' transfers of lines and results; above it "
        "the answer is 503 with Retry-After.",
    )
    max_concurrent_uploads: int = Field(
        default=32,
        ge=1,
        le=1 << 20,
        description="File uploads at once, of one tenant two thirds of them; above it the answer "
        "is 503.",
    )
    shutdown_grace_s: float = Field(
        default=20.0, ge=0, le=3600, description="How long running requests may take after SIGTERM."
    )

    @field_validator("models", "uri_private_hosts", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @model_validator(mode="after")
    def _windows_in_order(self) -> Self:
        if self.min_completion_window_s > self.max_completion_window_s:
            raise ValueError("min_completion_window_s is above max_completion_window_s")
        return self

    @property
    def database(self) -> str:
        """The SQLAlchemy URL of the database, with its password."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite+aiosqlite:///{self.data_dir / 'weir.db'}"

    @property
    def files(self) -> str:
        """The fsspec URL under which files are kept."""
        return self.files_url or f"file://{(self.data_dir / 'files').absolute()}"

    @property
    def admin_key(self) -> Path:
        """The file that receives the first admin key."""
        return self.admin_key_file or self.data_dir / "admin.key"
