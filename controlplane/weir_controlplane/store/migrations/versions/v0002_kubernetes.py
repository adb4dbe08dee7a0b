"""BatchJobs, LLMServices, namespaces, URIs and signed links; suspension and priority of batches.

Expands only: the previous release works beside it, and does not see suspensions or bindings.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

LEVEL = 2
OLDEST_COMPATIBLE_LEVEL = 1


def upgrade() -> None:
    """Adds tables and columns, and says which releases may use them."""
    op.create_table(
        "llm_services",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("service_account", sa.String(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_llm_services")),
    )
    op.create_table(
        "signing_keys",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signing_keys")),
    )
    op.create_table(
        "namespace_bindings",
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("batchjobs", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_namespace_bindings_tenant_id")
        ),
        sa.PrimaryKeyConstraint("namespace", "tenant_id", name=op.f("pk_namespace_bindings")),
    )
    op.create_index(
        "uq_namespace_bindings_batchjobs",
        "namespace_bindings",
        ["namespace"],
        unique=True,
        sqlite_where=sa.text("batchjobs"),
        postgresql_where=sa.text("batchjobs"),
    )
    op.create_table(
        "service_pods",
        sa.Column("uid", sa.String(), nullable=False),
        sa.Column("service", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("registered_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["service"], ["llm_services.id"], name=op.f("fk_service_pods_service")
        ),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_service_pods")),
    )
    op.create_index("ix_service_pods_service", "service_pods", ["service"], unique=False)
    op.create_table(
        "uri_prefixes",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("prefix", sa.String(), nullable=False),
        sa.Column("writable", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_uri_prefixes_tenant_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uri_prefixes")),
    )
    op.create_index("ix_uri_prefixes_tenant_id", "uri_prefixes", ["tenant_id"], unique=False)
    op.create_table(
        "batchjobs",
        sa.Column("uid", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("service", sa.String(), nullable=True),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("endpoint", sa.String(), nullable=False),
        sa.Column("completion_window", sa.String(), nullable=False),
        sa.Column("priority", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("suspended", sa.Boolean(), nullable=False),
        sa.Column("deadline_at", sa.Double(), nullable=True),
        sa.Column("metadata", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("input_inline", sa.LargeBinary(), nullable=True),
        sa.Column("input_uri", sa.String(), nullable=True),
        sa.Column("input_file_id", sa.String(), nullable=True),
        sa.Column("batch_id", sa.String(), nullable=True),
        sa.Column("errors", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("output_uri", sa.String(), nullable=True),
        sa.Column("delivery", sa.String(), nullable=False),
        sa.Column("delivery_message", sa.String(), nullable=True),
        sa.Column("work_nonce", sa.String(), nullable=True),
        sa.Column("work_lease_until", sa.Double(), nullable=False),
        sa.Column(
            "work_failures", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("work_error", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_batchjobs_batch_id")),
        sa.ForeignKeyConstraint(
            ["input_file_id"], ["files.id"], name=op.f("fk_batchjobs_input_file_id")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_batchjobs_tenant_id")),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_batchjobs")),
    )
    op.create_index("ix_batchjobs_batch_id", "batchjobs", ["batch_id"], unique=True)
    op.create_index("ix_batchjobs_tenant_id", "batchjobs", ["tenant_id"], unique=False)
    op.add_column(
        "batches",
        sa.Column(
            "priority",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default="0",
            nullable=False,
        ),
    )
    op.add_column("batches", sa.Column("suspended_at", sa.Double(), nullable=True))
    op.execute(
        f"UPDATE schema_info SET level = {LEVEL}, "  # noqa: S608
        f"oldest_compatible_level = {OLDEST_COMPATIBLE_LEVEL}"
    )
