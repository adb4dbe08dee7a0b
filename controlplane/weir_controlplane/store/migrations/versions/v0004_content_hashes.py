"""What a file was when it was stored, and each line when it was validated.

Expands only: the previous release writes neither and checks neither. What it wrote stays unchecked.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

LEVEL = 4
OLDEST_COMPATIBLE_LEVEL = 1


def upgrade() -> None:
    """Adds the columns, and says which releases may use them."""
    op.add_column("files", sa.Column("sha256", sa.String(), nullable=True))
    op.add_column("chunks", sa.Column("line_hashes", sa.LargeBinary(), nullable=True))
    op.execute(
        f"UPDATE schema_info SET level = {LEVEL}, "  # noqa: S608
        f"oldest_compatible_level = {OLDEST_COMPATIBLE_LEVEL}"
    )
