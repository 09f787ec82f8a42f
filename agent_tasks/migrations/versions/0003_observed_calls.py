"""Calls of plain tasks in observe mode."""

import sqlalchemy as sa
from alembic import context, op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        f"{context.config.attributes['prefix']}observed",
        sa.Column("call_key", sa.String(length=40), nullable=False),
        sa.Column("task", sa.String(length=400), nullable=False),
        sa.Column("call", sa.String(length=400), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.Column("successes", sa.Integer(), nullable=False),
        sa.Column("after_success", sa.Integer(), nullable=False),
        sa.Column("after_loss", sa.Integer(), nullable=False),
        sa.Column("after_failure", sa.Integer(), nullable=False),
        sa.Column("first_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("call_key"),
    )
