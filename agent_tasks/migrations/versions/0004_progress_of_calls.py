"""How far the body of a call came, for the next one."""

import sqlalchemy as sa
from alembic import context, op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column."""
    table = f"{context.config.attributes['prefix']}operations"
    op.add_column(table, sa.Column("progress", sa.LargeBinary(), nullable=True))
