"""The ledger's first tables: runs, operations, inbox, audit."""

import sqlalchemy as sa
from alembic import context, op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    prefix = context.config.attributes["prefix"]
    op.create_table(
        f"{prefix}audit",
        sa.Column("audit_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=200), nullable=False),
        sa.Column("operation_id", sa.String(length=40), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.String(length=200), nullable=False),
        sa.Column("what", sa.String(length=100), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("audit_id"),
    )
    op.create_index(f"{prefix}audit_run", f"{prefix}audit", ["run_id"], unique=False)
    op.create_table(
        f"{prefix}inbox",
        sa.Column("item_id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=200), nullable=False),
        sa.Column("question", sa.String(length=16), nullable=False),
        sa.Column("operation_id", sa.String(length=40), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("args_digest", sa.String(length=64), nullable=True),
        sa.Column("detail", sa.LargeBinary(), nullable=True),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.Column("reply", sa.String(length=16), nullable=True),
        sa.Column("replied_by", sa.String(length=200), nullable=True),
        sa.Column("replied_why", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("item_id"),
    )
    op.create_index(f"{prefix}inbox_run", f"{prefix}inbox", ["run_id"], unique=False)
    op.create_table(
        f"{prefix}operations",
        sa.Column("operation_id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=200), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("tool", sa.String(length=200), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("call_key", sa.String(length=200), nullable=True),
        sa.Column("effect", sa.String(length=16), nullable=False),
        sa.Column("args", sa.LargeBinary(), nullable=False),
        sa.Column("args_digest", sa.String(length=64), nullable=False),
        sa.Column("idempotency_key", sa.String(length=40), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("unsettled", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.String(length=32), nullable=False),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("result_missing", sa.SmallInteger(), nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("external_id", sa.String(length=400), nullable=True),
        sa.Column("error", sa.LargeBinary(), nullable=True),
        sa.Column("evidence", sa.LargeBinary(), nullable=True),
        sa.Column("orphan_reply", sa.String(length=16), nullable=True),
        sa.Column("born", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.BigInteger(), nullable=True),
        sa.Column("parent_operation", sa.String(length=40), nullable=True),
        sa.Column("first_started_at", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("horizon_at", sa.BigInteger(), nullable=True),
        sa.Column("ask_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("resolved_by", sa.String(length=200), nullable=True),
        sa.Column("resolved_why", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("operation_id"),
    )
    op.create_index(f"{prefix}operations_run", f"{prefix}operations", ["run_id", "seq"], unique=False)
    op.create_table(
        f"{prefix}runs",
        sa.Column("run_id", sa.String(length=200), nullable=False),
        sa.Column("agent", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.SmallInteger(), nullable=False),
        sa.Column("dedupe_key", sa.String(length=200), nullable=True),
        sa.Column("input_digest", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("line_start_seq", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("next_step", sa.String(length=200), nullable=True),
        sa.Column("output", sa.LargeBinary(), nullable=True),
        sa.Column("error", sa.LargeBinary(), nullable=True),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("wakeups", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.String(length=100), nullable=True),
        sa.Column("lease_token", sa.String(length=32), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("queue", sa.String(length=200), nullable=False),
        sa.Column("waiting_for", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("run_id"),
        sa.UniqueConstraint("agent", "dedupe_key", name=f"{prefix}runs_dedupe"),
    )
    op.create_index(
        f"{prefix}runs_due", f"{prefix}runs", ["due_at"], unique=False, postgresql_where=sa.text("due_at IS NOT NULL")
    )
