"""Calls of plain tasks in observe mode."""

import sqlalchemy as sa
from alembic import context

from agent_tasks.migrations.changes import create_table
from checkpoint.columns import Exact

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table."""
    create_table(
        f"{context.config.attributes['prefix']}observed",
        sa.Column("call_key", Exact(40), nullable=False),
        sa.Column("task", Exact(400), nullable=False),
        sa.Column("call", Exact(400), nullable=False),
        sa.Column("state", Exact(16), nullable=False),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.Column("successes", sa.Integer(), nullable=False),
        sa.Column("after_success", sa.Integer(), nullable=False),
        sa.Column("after_loss", sa.Integer(), nullable=False),
        sa.Column("after_failure", sa.Integer(), nullable=False),
        sa.Column("first_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("call_key"),
    )
