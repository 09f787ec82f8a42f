"""Lines that begin anywhere, retries, requests, recovery by hand, plain tasks, retention."""

import sqlalchemy as sa
from alembic import context, op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns; what stood keeps its meaning by their defaults."""
    prefix = context.config.attributes["prefix"]
    for column in (
        sa.Column("parent_line", sa.Integer(), server_default="0", nullable=False),
        sa.Column("retries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("request", sa.String(length=16), nullable=True),
        sa.Column("recovery", sa.String(length=16), server_default="auto", nullable=False),
        sa.Column("steps_allowed", sa.Integer(), nullable=True),
        sa.Column("task", sa.String(length=400), nullable=True),
        sa.Column("message", sa.LargeBinary(), nullable=True),
        sa.Column("keeps_result", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
    ):
        op.add_column(f"{prefix}runs", column)
    op.create_index(
        f"{prefix}runs_finished",
        f"{prefix}runs",
        ["finished_at"],
        unique=False,
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.add_column(f"{prefix}operations", sa.Column("key_until", sa.BigInteger(), nullable=True))
