"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

LEVEL = 1
OLDEST_COMPATIBLE_LEVEL = 1


def upgrade() -> None:
    """Creates every table and says which releases may use them."""
    op.create_table(
        "agents",
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("service", sa.String(), nullable=False),
        sa.Column(
            "incarnation", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("models", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("room", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("telemetry", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("policy", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("last_sync_at", sa.Double(), nullable=False),
        sa.Column("pause_until", sa.Double(), nullable=True),
        sa.Column("pauses", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", name=op.f("pk_agents")),
    )
    op.create_index(op.f("ix_agents_service"), "agents", ["service"], unique=False)
    op.create_table(
        "deaths",
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("death_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("solo", sa.Boolean(), nullable=False),
        sa.Column("resident", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "death_id", name=op.f("pk_deaths")),
    )
    op.create_table(
        "incarnations",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("boot_id", sa.String(), nullable=False),
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incarnations")),
        sa.UniqueConstraint("agent_id", "boot_id", name=op.f("uq_incarnations_agent_id_boot_id")),
    )
    op.create_table(
        "schema_info",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("level", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "oldest_compatible_level",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schema_info")),
    )
    op.create_table(
        "served_models",
        sa.Column("service", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("revision", sa.String(), nullable=False),
        sa.Column(
            "max_model_len", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("service", "name", "revision", name=op.f("pk_served_models")),
    )
    op.create_table(
        "kv_demand",
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column(
            "length_s",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column(
            "start_s",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("samples", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("sum_blocks", sa.Double(), nullable=False),
        sa.Column("sum_sq_blocks", sa.Double(), nullable=False),
        sa.Column(
            "max_blocks", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.PrimaryKeyConstraint("agent_id", "length_s", "start_s", name=op.f("pk_kv_demand")),
    )
    op.create_index("ix_kv_demand_length_start", "kv_demand", ["length_s", "start_s"], unique=False)
    op.create_table(
        "dispatch_clock",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("watched_at", sa.Double(), nullable=False),
        sa.Column("hold_until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dispatch_clock")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column(
            "max_batches", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column(
            "max_queued_tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=True),
        sa.Column("agent_id", sa.String(), nullable=True),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("prefix", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_api_keys_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("prefix", name=op.f("uq_api_keys_prefix")),
    )
    op.create_index(op.f("ix_api_keys_tenant_id"), "api_keys", ["tenant_id"], unique=False)
    op.create_table(
        "files",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("filename", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column(
            "size_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("storage_key", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_files_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
    )
    op.create_index("ix_files_status_expires", "files", ["status", "expires_at"], unique=False)
    op.create_index(
        "ix_files_tenant_list", "files", ["tenant_id", "created_at", "id"], unique=False
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("input_file_id", sa.String(), nullable=False),
        sa.Column("endpoint", sa.String(), nullable=False),
        sa.Column("completion_window", sa.String(), nullable=False),
        sa.Column("metadata", sa.JSON(none_as_null=True), nullable=True),
        sa.Column(
            "output_expires_s", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("revision", sa.String(), nullable=True),
        sa.Column("service", sa.String(), nullable=True),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("closing_as", sa.String(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("in_progress_at", sa.Double(), nullable=True),
        sa.Column("finalizing_at", sa.Double(), nullable=True),
        sa.Column("completed_at", sa.Double(), nullable=True),
        sa.Column("failed_at", sa.Double(), nullable=True),
        sa.Column("expired_at", sa.Double(), nullable=True),
        sa.Column("cancelling_at", sa.Double(), nullable=True),
        sa.Column("cancelled_at", sa.Double(), nullable=True),
        sa.Column("errors", sa.JSON(none_as_null=True), nullable=True),
        sa.Column(
            "total_lines", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "completed_lines", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "failed_lines", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "queued_tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("deaths", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "input_tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column(
            "cached_tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column(
            "output_tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column(
            "reasoning_tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column("output_file_id", sa.String(), nullable=True),
        sa.Column("error_file_id", sa.String(), nullable=True),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column(
            "create_retry_count",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            nullable=False,
        ),
        sa.Column("matched_retry_counts", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=True),
        sa.Column("work_owner", sa.String(), nullable=True),
        sa.Column(
            "work_attempt", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("work_nonce", sa.String(), nullable=True),
        sa.Column("work_lease_until", sa.Double(), nullable=False),
        sa.Column(
            "work_failures", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("work_error", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["error_file_id"], ["files.id"], name=op.f("fk_batches_error_file_id")
        ),
        sa.ForeignKeyConstraint(
            ["input_file_id"], ["files.id"], name=op.f("fk_batches_input_file_id")
        ),
        sa.ForeignKeyConstraint(
            ["output_file_id"], ["files.id"], name=op.f("fk_batches_output_file_id")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_batches_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
        sa.UniqueConstraint(
            "tenant_id", "idempotency_key", name=op.f("uq_batches_tenant_id_idempotency_key")
        ),
    )
    op.create_index(
        "ix_batches_fingerprint",
        "batches",
        ["tenant_id", "fingerprint", "created_at"],
        unique=False,
    )
    op.create_index(op.f("ix_batches_input_file_id"), "batches", ["input_file_id"], unique=False)
    op.create_index(
        "ix_batches_tenant_list", "batches", ["tenant_id", "created_at", "id"], unique=False
    )
    op.create_index("ix_batches_work", "batches", ["status", "work_lease_until"], unique=False)
    op.create_table(
        "chunks",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column("parent_id", sa.String(), nullable=True),
        sa.Column("position", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("solo", sa.Boolean(), nullable=False),
        sa.Column("prefix_group", sa.String(), nullable=False),
        sa.Column("density", sa.Double(), nullable=False),
        sa.Column("tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("lines", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "size_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("line_index", sa.LargeBinary(), nullable=False),
        sa.Column("attempt", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("nonce", sa.String(), nullable=True),
        sa.Column("leased_by", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column(
            "leased_sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.Column("leased_at", sa.Double(), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column(
            "lines_done", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_chunks_batch_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chunks")),
    )
    op.create_index(
        "ix_chunks_batch_state", "chunks", ["batch_id", "state", "position"], unique=False
    )
    op.create_index("ix_chunks_holder", "chunks", ["leased_by"], unique=False)
    op.create_index("ix_chunks_lease", "chunks", ["state", "lease_until"], unique=False)
    op.create_table(
        "suspects",
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column(
            "line",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("deaths", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "solo_deaths", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_suspects_batch_id")),
        sa.PrimaryKeyConstraint("batch_id", "line", name=op.f("pk_suspects")),
    )
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("chunk_id", sa.String(), nullable=False),
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column("attempt", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("nonce", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("storage_key", sa.String(), nullable=False),
        sa.Column(
            "size_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("ranges", sa.JSON(none_as_null=True), nullable=False),
        sa.Column(
            "completed_lines", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "failed_lines", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "input_tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "cached_tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "output_tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "reasoning_tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("stored", sa.Boolean(), nullable=False),
        sa.Column("marked_at", sa.Double(), nullable=True),
        sa.Column("committed", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_uploads_batch_id")),
        sa.ForeignKeyConstraint(["chunk_id"], ["chunks.id"], name=op.f("fk_uploads_chunk_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
        sa.UniqueConstraint(
            "chunk_id",
            "attempt",
            "nonce",
            "sha256",
            name=op.f("uq_uploads_chunk_id_attempt_nonce_sha256"),
        ),
    )
    op.create_index(op.f("ix_uploads_chunk_id"), "uploads", ["chunk_id"], unique=False)
    op.create_index("ix_uploads_created", "uploads", ["committed", "created_at"], unique=False)
    op.create_table(
        "chunk_results",
        sa.Column("chunk_id", sa.String(), nullable=False),
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column("upload_id", sa.String(), nullable=False),
        sa.Column("attempt", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("nonce", sa.String(), nullable=False),
        sa.Column("storage_key", sa.String(), nullable=False),
        sa.Column(
            "size_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("ranges", sa.JSON(none_as_null=True), nullable=False),
        sa.Column(
            "completed_lines", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "failed_lines", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "input_tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "cached_tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "output_tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column(
            "reasoning_tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("committed_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_chunk_results_batch_id")
        ),
        sa.ForeignKeyConstraint(
            ["chunk_id"], ["chunks.id"], name=op.f("fk_chunk_results_chunk_id")
        ),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["uploads.id"], name=op.f("fk_chunk_results_upload_id")
        ),
        sa.PrimaryKeyConstraint("chunk_id", name=op.f("pk_chunk_results")),
        sa.UniqueConstraint("upload_id", name=op.f("uq_chunk_results_upload_id")),
    )
    op.create_index(op.f("ix_chunk_results_batch_id"), "chunk_results", ["batch_id"], unique=False)
    op.execute(
        f"INSERT INTO schema_info (id, level, oldest_compatible_level) "  # noqa: S608
        f"VALUES (1, {LEVEL}, {OLDEST_COMPATIBLE_LEVEL})"
    )
