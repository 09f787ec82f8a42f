"""Lines that begin anywhere, retries, requests, recovery by hand, plain tasks, retention."""

import sqlalchemy as sa
from alembic import context

from agent_tasks.migrations.changes import add_column, create_index
from checkpoint.columns import BYTES, Exact

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns; what stood keeps its meaning by their defaults."""
    prefix = context.config.attributes["prefix"]
    for column in (
        sa.Column("parent_line", sa.Integer(), server_default="0", nullable=False),
        sa.Column("retries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("request", Exact(16), nullable=True),
        sa.Column("recovery", Exact(16), server_default="auto", nullable=False),
        sa.Column("steps_allowed", sa.Integer(), nullable=True),
        sa.Column("task", Exact(400), nullable=True),
        sa.Column("message", BYTES, nullable=True),
        sa.Column("keeps_result", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
    ):
        add_column(f"{prefix}runs", column)
    create_index(
        f"{prefix}runs_finished",
        f"{prefix}runs",
        ["finished_at"],
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    add_column(f"{prefix}operations", sa.Column("key_until", sa.BigInteger(), nullable=True))
