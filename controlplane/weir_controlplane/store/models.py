"""The tables of tenants, files, and batches with their chunks.

Times are seconds since 1970 by the database's clock, as doubles. A change here needs the same
change in ``migrations/versions``: a test compares them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Big = BigInteger().with_variant(Integer(), "sqlite")  # SQLite numbers rows only in INTEGER


class Base(DeclarativeBase):
    """Root of the schema."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - read by SQLAlchemy as a class attribute
        str: String(),
        float: Double(),
        int: Big,
        bytes: LargeBinary(),
        dict[str, Any]: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
    }


class SchemaInfo(Base):
    """One row: which releases may run on this schema (§8.10)."""

    __tablename__ = "schema_info"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    level: Mapped[int]
    oldest_compatible_level: Mapped[int]


class Tenant(Base):
    """Who owns files and batches. None in a quota: the default of the settings."""

    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[float]
    max_batches: Mapped[int | None]
    max_queued_tokens: Mapped[int | None]


class ApiKey(Base):
    """An API key: its hash, and the prefix by which it is looked up."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str | None] = mapped_column(ForeignKey("tenants.id"), index=True)
    agent_id: Mapped[str | None]  # an agent key bound to one agent; None: any
    scope: Mapped[str]  # tenant | admin | agent
    name: Mapped[str]
    prefix: Mapped[str] = mapped_column(unique=True)
    hash: Mapped[str]  # SHA-256 of the whole key, hex
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]


class File(Base):
    """A file of a tenant. The row comes first (uploading) and stays after deletion (cursors)."""

    __tablename__ = "files"
    __table_args__ = (
        Index("ix_files_tenant_list", "tenant_id", "created_at", "id"),
        Index("ix_files_status_expires", "status", "expires_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    filename: Mapped[str]
    purpose: Mapped[str]
    size_bytes: Mapped[int]
    status: Mapped[str]  # uploading | processed | deleted (content still there) | purged
    storage_key: Mapped[str]
    sha256: Mapped[str | None]  # of the content, hex; None: made here, or by an earlier release
    created_at: Mapped[float]
    expires_at: Mapped[float | None]


class Batch(Base):
    """A batch. ``work_*`` is the fenced lease of whoever validates or finalizes it."""

    __tablename__ = "batches"
    __table_args__ = (
        UniqueConstraint("tenant_id", "idempotency_key"),
        Index("ix_batches_tenant_list", "tenant_id", "created_at", "id"),
        Index("ix_batches_fingerprint", "tenant_id", "fingerprint", "created_at"),
        Index("ix_batches_work", "status", "work_lease_until"),
        Index("ix_batches_tenant_status", "tenant_id", "status"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    input_file_id: Mapped[str] = mapped_column(ForeignKey("files.id"), index=True)
    endpoint: Mapped[str]
    completion_window: Mapped[str]
    # Called "metadata" on the wire; SQLAlchemy keeps that name for itself.
    labels: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    output_expires_s: Mapped[int]
    model: Mapped[str | None]  # set by validation
    revision: Mapped[str | None]  # pinned by the first lease (§8.12)
    service: Mapped[str | None]  # None: any service that serves the model

    # With a default in the database: the previous release inserts rows without it (§8.10).
    priority: Mapped[int] = mapped_column(default=0, server_default="0")
    suspended_at: Mapped[float | None]  # since when nothing of it is dispatched

    status: Mapped[str]
    closing_as: Mapped[str | None]  # while finalizing: completed | expired | cancelled
    created_at: Mapped[float]
    expires_at: Mapped[float]
    in_progress_at: Mapped[float | None]
    finalizing_at: Mapped[float | None]
    completed_at: Mapped[float | None]
    failed_at: Mapped[float | None]
    expired_at: Mapped[float | None]
    cancelling_at: Mapped[float | None]
    cancelled_at: Mapped[float | None]

    errors: Mapped[list[Any] | None]  # why it failed, the first 100
    total_lines: Mapped[int] = mapped_column(default=0)
    completed_lines: Mapped[int] = mapped_column(default=0)  # written once, at the end
    failed_lines: Mapped[int] = mapped_column(default=0)  # written once, at the end
    queued_tokens: Mapped[int] = mapped_column(default=0)  # against the quota; 0 when finished
    deaths: Mapped[int] = mapped_column(default=0)  # engine deaths that it alone can have caused
    input_tokens: Mapped[int | None]
    cached_tokens: Mapped[int | None]
    output_tokens: Mapped[int | None]
    reasoning_tokens: Mapped[int | None]
    output_file_id: Mapped[str | None] = mapped_column(ForeignKey("files.id"), index=True)
    error_file_id: Mapped[str | None] = mapped_column(ForeignKey("files.id"), index=True)

    idempotency_key: Mapped[str | None]
    fingerprint: Mapped[str]  # of tenant, file, endpoint, window and metadata
    create_retry_count: Mapped[int] = mapped_column(default=0)  # of the call that made it
    matched_retry_counts: Mapped[list[Any]] = mapped_column(default=list)
    seen_at: Mapped[float | None]  # first read or cancelled: a later create is a new batch

    work_owner: Mapped[str | None]  # name of the replica
    work_attempt: Mapped[int] = mapped_column(default=0)
    work_nonce: Mapped[str | None]
    work_lease_until: Mapped[float] = mapped_column(default=0.0)
    work_failures: Mapped[int] = mapped_column(default=0)
    work_error: Mapped[str | None]  # why the last attempt stopped
    missing_since: Mapped[float | None]  # when the file store first said that it lacks an object
    missing_times: Mapped[int] = mapped_column(default=0, server_default="0")  # said in a row


class Chunk(Base):
    """Lines of a batch that are leased and committed together."""

    __tablename__ = "chunks"
    __table_args__ = (
        Index("ix_chunks_batch_state", "batch_id", "state", "position"),
        Index("ix_chunks_lease", "state", "lease_until"),
        Index("ix_chunks_holder", "leased_by"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"))
    parent_id: Mapped[str | None]  # the chunk whose partial commit left this one
    position: Mapped[int]  # place in the batch's prefix order
    state: Mapped[str]  # open | leased | done (has a result) | closed (has none)
    solo: Mapped[bool] = mapped_column(default=False)
    prefix_group: Mapped[str]
    density: Mapped[float]  # estimated prompt tokens by estimated output tokens
    tokens: Mapped[int]  # estimated, prompt and output
    lines: Mapped[int]
    size_bytes: Mapped[int]
    line_index: Mapped[bytes]  # packed by store.line_index, by line
    line_hashes: Mapped[bytes | None]  # likewise; lines of its parent may be among them

    attempt: Mapped[int] = mapped_column(default=0)
    nonce: Mapped[str | None]
    leased_by: Mapped[int | None]  # incarnation
    leased_sequence: Mapped[int | None]  # of the sync that was answered with it
    leased_at: Mapped[float | None]
    lease_until: Mapped[float | None]
    lines_done: Mapped[int] = mapped_column(default=0)  # as the holder last said
    revoked_at: Mapped[float | None]  # its holder was first asked to stop, for suspects (§8.5)


class Upload(Base):
    """A stored, uncommitted chunk result. A commit needs ``marked_at`` to be null (§8.2)."""

    __tablename__ = "uploads"
    __table_args__ = (
        UniqueConstraint("chunk_id", "attempt", "nonce", "sha256"),
        Index("ix_uploads_created", "committed", "created_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    chunk_id: Mapped[str] = mapped_column(ForeignKey("chunks.id"), index=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"), index=True)
    attempt: Mapped[int]
    nonce: Mapped[str]
    sha256: Mapped[str]
    storage_key: Mapped[str]
    size_bytes: Mapped[int]
    ranges: Mapped[list[Any]]  # lines in it, as [first, last] pairs
    completed_lines: Mapped[int]
    failed_lines: Mapped[int]
    input_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    output_tokens: Mapped[int]
    reasoning_tokens: Mapped[int]
    created_at: Mapped[float]
    stored: Mapped[bool] = mapped_column(default=False)  # the object is there, whole
    marked_at: Mapped[float | None]
    committed: Mapped[bool] = mapped_column(default=False)


class ChunkResult(Base):
    """The one committed result of a chunk: NDJSON, sorted by line, as docs/protocol.md gives it."""

    __tablename__ = "chunk_results"

    chunk_id: Mapped[str] = mapped_column(ForeignKey("chunks.id"), primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"), index=True)
    upload_id: Mapped[str] = mapped_column(ForeignKey("uploads.id"), unique=True)
    attempt: Mapped[int]
    nonce: Mapped[str]
    storage_key: Mapped[str]
    size_bytes: Mapped[int]
    ranges: Mapped[list[Any]]
    completed_lines: Mapped[int]
    failed_lines: Mapped[int]
    input_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    output_tokens: Mapped[int]
    reasoning_tokens: Mapped[int]
    committed_at: Mapped[float]


class Suspect(Base):
    """A line that was in an engine when it died (§8.5). ``failed``: it ends with ``error``."""

    __tablename__ = "suspects"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id"), primary_key=True)
    line: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    state: Mapped[str]  # suspect | cleared | failed
    deaths: Mapped[int] = mapped_column(default=0)
    solo_deaths: Mapped[int] = mapped_column(default=0)
    error: Mapped[dict[str, Any] | None]  # {code, message}
    updated_at: Mapped[float]


class DispatchClock(Base):
    """One row: when leases were last watched over, and until when none expires (§8.1)."""

    __tablename__ = "dispatch_clock"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    watched_at: Mapped[float]
    hold_until: Mapped[float]
