"""Since when, and how often in a row, the file store has said that it lacks an object of a batch.

Expands only: the previous release works beside it, and goes on trying.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

LEVEL = 3
OLDEST_COMPATIBLE_LEVEL = 1


def upgrade() -> None:
    """Adds the columns, and says which releases may use them."""
    op.add_column("batches", sa.Column("missing_since", sa.Double(), nullable=True))
    op.add_column(
        "batches",
        sa.Column(
            "missing_times",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default="0",
            nullable=False,
        ),
    )
    op.execute(
        f"UPDATE schema_info SET level = {LEVEL}, "  # noqa: S608
        f"oldest_compatible_level = {OLDEST_COMPATIBLE_LEVEL}"
    )
