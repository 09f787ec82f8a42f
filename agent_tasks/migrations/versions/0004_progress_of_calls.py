"""How far the body of a call came, for the next one."""

import sqlalchemy as sa
from alembic import context

from agent_tasks.migrations.changes import add_column
from checkpoint.columns import BYTES

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column."""
    table = f"{context.config.attributes['prefix']}operations"
    add_column(table, sa.Column("progress", BYTES, nullable=True))
