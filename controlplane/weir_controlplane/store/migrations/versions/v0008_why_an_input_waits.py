"""What stopped the last attempt to take in a BatchJob's input, in words for its owner.

Expands only: the previous release works beside it, and leaves the column as it is.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

LEVEL = 8
OLDEST_COMPATIBLE_LEVEL = 1


def upgrade() -> None:
    """Adds the column, and says which releases may use it."""
    op.add_column("batchjobs", sa.Column("work_message", sa.String(), nullable=True))
    op.execute(
        f"UPDATE schema_info SET level = {LEVEL}, "  # noqa: S608
        f"oldest_compatible_level = {OLDEST_COMPATIBLE_LEVEL}"
    )
