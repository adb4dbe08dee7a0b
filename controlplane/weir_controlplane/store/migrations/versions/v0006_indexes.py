"""Indexes for what is asked often: a tenant's unfinished batches, and the uploads of a batch.

Without them what has ended is read again each time. Expands only: the previous release works
beside it.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

LEVEL = 6
OLDEST_COMPATIBLE_LEVEL = 1


def upgrade() -> None:
    """Adds the indexes, and says which releases may use them."""
    op.create_index("ix_batches_tenant_status", "batches", ["tenant_id", "status"])
    op.create_index("ix_uploads_batch_id", "uploads", ["batch_id"])
    op.execute(
        f"UPDATE schema_info SET level = {LEVEL}, "  # noqa: S608
        f"oldest_compatible_level = {OLDEST_COMPATIBLE_LEVEL}"
    )
