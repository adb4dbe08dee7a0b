"""Indexes for who refers to a file: the database asks it of each row of files that it deletes.

Without them it reads all batches and BatchJobs for that. Expands only: the previous release works
beside it.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

LEVEL = 7
OLDEST_COMPATIBLE_LEVEL = 1


def upgrade() -> None:
    """Adds the indexes, and says which releases may use them."""
    op.create_index("ix_batches_output_file_id", "batches", ["output_file_id"])
    op.create_index("ix_batches_error_file_id", "batches", ["error_file_id"])
    op.create_index("ix_batchjobs_input_file_id", "batchjobs", ["input_file_id"])
    op.execute(
        f"UPDATE schema_info SET level = {LEVEL}, "  # noqa: S608
        f"oldest_compatible_level = {OLDEST_COMPATIBLE_LEVEL}"
    )
