"""Which URI prefixes are stored encoded: earlier releases stored them decoded.

A percent sign in them was read as the begin of an encoded character: another folder than the
administrator had named. Expands only: the previous release works beside it, and reads as it did.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

LEVEL = 5
OLDEST_COMPATIBLE_LEVEL = 1


def upgrade() -> None:
    """Adds the column, and says which releases may use it."""
    op.add_column(
        "uri_prefixes",
        sa.Column("encoded", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
    op.execute(
        f"UPDATE schema_info SET level = {LEVEL}, "  # noqa: S608
        f"oldest_compatible_level = {OLDEST_COMPATIBLE_LEVEL}"
    )
